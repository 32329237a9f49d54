#include "core/tensor.h"

#include <algorithm>
#include <utility>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

[[noreturn]] void fail(const TensorView& view, const std::string& problem) {
  throw InvalidArgument("tensor " + describe(view) + ": " + problem);
}

void expect_dim(const TensorView& view, int dim) {
  if (dim < 0 || dim >= view.rank()) fail(view, "no dim " + std::to_string(dim));
}

}  // namespace

Extents::Extents(std::initializer_list<std::int64_t> values) {
  for (const std::int64_t value : values) push_back(value);
}

void Extents::push_back(std::int64_t value) { insert(rank_, value); }

void Extents::insert(int dim, std::int64_t value) {
  if (rank_ == kMaxRank) {
    throw InvalidArgument("a tensor has at most " + std::to_string(kMaxRank) + " dims");
  }
  std::copy_backward(values_ + dim, values_ + rank_, values_ + rank_ + 1);
  values_[dim] = value;
  ++rank_;
}

void Extents::erase(int dim) {
  std::copy(values_ + dim + 1, values_ + rank_, values_ + dim);
  values_[--rank_] = 0;
}

bool operator==(const Extents& a, const Extents& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return strides;
}

std::string to_string(const Extents& extents) {
  std::string text = "[";
  for (int dim = 0; dim < extents.rank(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(extents[dim]);
  }
  return text + "]";
}

std::string describe(const TensorView& view) {
  return std::string(view.name) + " " + std::string(name(view.dtype)) + " " + to_string(view.shape);
}

bool TensorView::is_contiguous() const {
  std::int64_t expected = 1;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (shape[dim] != 1 && strides[dim] != expected) return elements() == 0;
    expected *= shape[dim];
  }
  return true;
}

TensorView TensorView::narrow(int dim, std::int64_t begin, std::int64_t length) const {
  expect_dim(*this, dim);
  if (begin < 0 || length < 0 || begin + length > shape[dim]) {
    fail(*this, "narrow of dim " + std::to_string(dim) + " to [" + std::to_string(begin) + ", " +
                    std::to_string(begin + length) + ") leaves the tensor");
  }
  TensorView result = *this;
  if (data != nullptr) {  // an empty tensor has no memory, nor have its views
    const auto offset = begin * strides[dim] * static_cast<std::int64_t>(size_bytes(dtype));
    result.data = static_cast<unsigned char*>(data) + offset;
  }
  result.shape[dim] = length;
  return result;
}

TensorView TensorView::select(int dim, std::int64_t index) const {
  TensorView result = narrow(dim, index, 1);
  result.shape.erase(dim);
  result.strides.erase(dim);
  return result;
}

TensorView TensorView::transposed(int dim_a, int dim_b) const {
  expect_dim(*this, dim_a);
  expect_dim(*this, dim_b);
  TensorView result = *this;
  std::swap(result.shape[dim_a], result.shape[dim_b]);
  std::swap(result.strides[dim_a], result.strides[dim_b]);
  return result;
}

TensorView TensorView::split(int dim, std::int64_t outer) const {
  expect_dim(*this, dim);
  if (outer <= 0 || shape[dim] % outer != 0) {
    fail(*this, "dim " + std::to_string(dim) + " does not split into " + std::to_string(outer));
  }
  TensorView result = *this;
  const std::int64_t inner = shape[dim] / outer;
  result.shape[dim] = inner;
  result.shape.insert(dim, outer);
  result.strides.insert(dim, inner * strides[dim]);
  return result;
}

TensorView TensorView::merged(int dim) const {
  expect_dim(*this, dim);
  expect_dim(*this, dim + 1);
  if (shape[dim] > 1 && strides[dim] != shape[dim + 1] * strides[dim + 1]) {
    fail(*this, "dims " + std::to_string(dim) + " and " + std::to_string(dim + 1) +
                    " do not lie behind each other");
  }
  TensorView result = *this;
  result.shape[dim + 1] *= shape[dim];
  result.shape.erase(dim);
  result.strides.erase(dim);
  return result;
}

TensorView TensorView::reshaped(const Shape& new_shape) const {
  expect_contiguous(*this);
  if (element_count(new_shape) != elements())
    fail(*this, "no view of shape " + to_string(new_shape));
  TensorView result = *this;
  result.shape = new_shape;
  result.strides = contiguous_strides(new_shape);
  return result;
}

TensorView TensorView::viewed_as(DType other) const {
  if (size_bytes(other) != size_bytes(dtype)) {
    fail(*this, "no view as " + std::string(mladcp::name(other)));
  }
  TensorView result = *this;
  result.dtype = other;
  return result;
}

TensorView TensorView::renamed(const char* new_name) const {
  TensorView result = *this;
  result.name = new_name;
  return result;
}

void expect_shape(const TensorView& view, const Shape& shape) {
  if (!(view.shape == shape)) fail(view, "expected shape " + to_string(shape));
}

void expect_dtype(const TensorView& view, DType dtype) {
  if (view.dtype != dtype) fail(view, "expected dtype " + std::string(name(dtype)));
}

void expect(const TensorView& view, DType dtype, const Shape& shape) {
  expect_dtype(view, dtype);
  expect_shape(view, shape);
}

void expect_contiguous(const TensorView& view) {
  if (!view.is_contiguous()) {
    fail(view, "strides " + to_string(view.strides) + " are not contiguous");
  }
}

void expect_unit_last_stride(const TensorView& view) {
  const int last = view.rank() - 1;
  if (last >= 0 && view.shape[last] > 1 && view.strides[last] != 1) {
    fail(view, "strides " + to_string(view.strides) + " must end in 1");
  }
}

int normalized_dim(const TensorView& view, int dim) {
  const int normalized = dim < 0 ? dim + view.rank() : dim;
  expect_dim(view, normalized);
  return normalized;
}

Tensor::Tensor(Device& device, DType dtype, const Shape& shape, const char* name) {
  view_ = {nullptr, dtype, shape, contiguous_strides(shape), &device, name};
  for (const std::int64_t extent : shape) {
    if (extent < 0) fail(view_, "negative extent");
  }
  view_.data = device.allocate(static_cast<std::size_t>(view_.bytes()));
}

Tensor::~Tensor() { release(); }

Tensor::Tensor(Tensor&& other) noexcept : view_(std::exchange(other.view_, {})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    release();
    view_ = std::exchange(other.view_, {});
  }
  return *this;
}

void Tensor::release() noexcept {
  if (view_.data != nullptr) view_.device->deallocate(view_.data);
  view_ = {};
}

Tensor copied_to_host(const TensorView& source, Stream stream) {
  Tensor result(host_device(), source.dtype, source.shape, source.name);
  if (source.elements() == 0) return result;
  Device& device = *source.device;
  if (device.kind() == DeviceKind::kHost) {
    device.copy_strided(result, source, stream);
  } else if (source.is_contiguous()) {
    device.copy_to_host(result.view().data, source.data, static_cast<std::size_t>(source.bytes()),
                        stream);
  } else {
    const Tensor dense(device, source.dtype, source.shape, source.name);
    device.copy_strided(dense, source, stream);
    device.copy_to_host(result.view().data, dense.view().data,
                        static_cast<std::size_t>(source.bytes()), stream);
  }
  return result;
}

Tensor copied_to_device(const TensorView& host_source, Device& device, Stream stream) {
  Tensor result(device, host_source.dtype, host_source.shape, host_source.name);
  if (host_source.elements() == 0) return result;
  const auto bytes = static_cast<std::size_t>(host_source.bytes());
  if (host_source.is_contiguous()) {
    device.copy_from_host(result.view().data, host_source.data, bytes, stream);
  } else {
    const Tensor dense = copied_to_host(host_source, Stream{});
    device.copy_from_host(result.view().data, dense.view().data, bytes, stream);
  }
  return result;
}

}  // namespace mladcp
