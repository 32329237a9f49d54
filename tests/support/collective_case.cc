#include "tests/support/collective_case.h"

#include <algorithm>
#include <cstring>

#include "core/bfloat16.h"
#include "core/error.h"

namespace mladcp {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Calls body(index) for every index of `shape`, in row-major order.
template <typename Body>
void for_each_index(const Shape& shape, const Body& body) {
  Extents index = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) index[dim] = 0;
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    body(index);
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      if (++index[dim] < shape[dim]) break;
      index[dim] = 0;
    }
  }
}

std::int64_t linear(const Extents& index, const Shape& shape) {
  std::int64_t position = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) position = position * shape[dim] + index[dim];
  return position;
}

float addend(int rank, std::int64_t position) {
  return static_cast<float>(mixed(static_cast<std::uint64_t>(position) * 64 + rank) % 17) - 8.0F;
}

void put_number(unsigned char* at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
  } else {
    const BFloat16 rounded = BFloat16::from_float(value);
    std::memcpy(at, &rounded, sizeof rounded);
  }
}

const char* name(Layout layout) {
  switch (layout) {
    case Layout::kDense:
      return "dense";
    case Layout::kPadded:
      return "padded";
    case Layout::kTransposed:
      return "transposed";
  }
  return "?";
}

int dim_of(const CollectiveCase& test_case) {
  return test_case.dim < 0 ? test_case.dim + test_case.in_shape.rank() : test_case.dim;
}

void call(const CollectiveCase& test_case, Collective& collective, const TensorView& out,
          const TensorView& in, Stream stream) {
  switch (test_case.op) {
    case CollectiveOp::kAllGather:
      return collective.all_gather(out, in, test_case.dim, stream, "test");
    case CollectiveOp::kReduceScatter:
      return collective.reduce_scatter(out, in, test_case.dim, stream, "test");
    case CollectiveOp::kAllToAll:
      return collective.all_to_all(out, in, stream, "test");
  }
}

}  // namespace

std::string describe(const CollectiveCase& test_case) {
  return std::string(name(test_case.op)) + " dim " + std::to_string(test_case.dim) + " " +
         std::string(name(test_case.dtype)) + " " + to_string(test_case.in_shape) + " from " +
         name(test_case.in_layout) + " to " + name(test_case.out_layout);
}

LaidOutTensor::LaidOutTensor(Device& device, DType dtype, const Shape& shape, Layout layout,
                             const char* tensor_name, Stream stream) {
  Shape outer = shape;
  const int last = shape.rank() - 1;
  if (layout == Layout::kTransposed) std::swap(outer[0], outer[last]);
  if (layout == Layout::kPadded) {
    outer[0] += 3;
    if (last > 0) outer[last] += 3;
  }
  storage_ = Tensor(device, dtype, outer, tensor_name);
  device.fill_bytes(storage_.view().data, kPoison,
                    static_cast<std::size_t>(storage_.view().bytes()), stream);
  view_ = storage_.view();
  if (layout == Layout::kTransposed) view_ = view_.transposed(0, last);
  if (layout == Layout::kPadded) {
    view_ = view_.narrow(0, 1, shape[0]);
    if (last > 0) view_ = view_.narrow(last, 2, shape[last]);
  }
}

std::vector<std::int64_t> LaidOutTensor::element_offsets() const {
  const auto element = static_cast<std::int64_t>(size_bytes(view_.dtype));
  const std::int64_t begin = static_cast<const unsigned char*>(view_.data) -
                             static_cast<const unsigned char*>(storage_.view().data);
  std::vector<std::int64_t> offsets;
  for_each_index(view_.shape, [&](const Extents& index) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < view_.rank(); ++dim) offset += index[dim] * view_.strides[dim];
    offsets.push_back(begin + offset * element);
  });
  return offsets;
}

std::vector<unsigned char> LaidOutTensor::storage(Stream stream) const {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(storage_.view().bytes()));
  view_.device->copy_to_host(bytes.data(), storage_.view().data, bytes.size(), stream);
  return bytes;
}

void LaidOutTensor::write(const std::vector<unsigned char>& bytes, Stream stream) {
  std::vector<unsigned char> all = storage(stream);
  const std::size_t element = size_bytes(view_.dtype);
  std::size_t position = 0;
  for (const std::int64_t offset : element_offsets()) {
    std::memcpy(all.data() + offset, bytes.data() + position, element);
    position += element;
  }
  view_.device->copy_from_host(storage_.view().data, all.data(), all.size(), stream);
}

std::vector<unsigned char> LaidOutTensor::read(Stream stream) const {
  const std::vector<unsigned char> all = storage(stream);
  const std::size_t element = size_bytes(view_.dtype);
  std::vector<unsigned char> bytes;
  for (const std::int64_t offset : element_offsets()) {
    bytes.insert(bytes.end(), all.begin() + offset, all.begin() + offset + element);
  }
  return bytes;
}

std::int64_t LaidOutTensor::overwritten_bytes(Stream stream) const {
  std::vector<unsigned char> all = storage(stream);
  for (const std::int64_t offset : element_offsets()) {
    std::fill_n(all.begin() + offset, size_bytes(view_.dtype), kPoison);
  }
  return std::count_if(all.begin(), all.end(), [](unsigned char byte) { return byte != kPoison; });
}

Shape out_shape(const CollectiveCase& test_case, int world_size) {
  Shape shape = test_case.in_shape;
  if (test_case.op == CollectiveOp::kAllGather) shape[dim_of(test_case)] *= world_size;
  if (test_case.op == CollectiveOp::kReduceScatter) shape[dim_of(test_case)] /= world_size;
  return shape;
}

std::vector<unsigned char> input_bytes(const CollectiveCase& test_case, int rank) {
  const std::size_t element = size_bytes(test_case.dtype);
  const std::int64_t elements = element_count(test_case.in_shape);
  std::vector<unsigned char> bytes(static_cast<std::size_t>(elements) * element);
  for (std::int64_t i = 0; i < elements; ++i) {
    unsigned char* at = bytes.data() + i * element;
    if (test_case.op == CollectiveOp::kReduceScatter) {
      put_number(at, test_case.dtype, addend(rank, i));
    } else {
      const std::uint64_t bits = mixed(static_cast<std::uint64_t>(i) * 64 + rank);
      std::memcpy(at, &bits, element);
    }
  }
  return bytes;
}

std::vector<unsigned char> expected_bytes(const CollectiveCase& test_case, int rank,
                                          int world_size) {
  const std::size_t element = size_bytes(test_case.dtype);
  const int dim = dim_of(test_case);
  const Shape shape = out_shape(test_case, world_size);
  std::vector<std::vector<unsigned char>> inputs;
  for (int s = 0; s < world_size; ++s) inputs.push_back(input_bytes(test_case, s));
  std::vector<unsigned char> bytes;
  const auto append_element = [&](int s, const Extents& index) {
    const auto at = inputs[s].begin() + linear(index, test_case.in_shape) * element;
    bytes.insert(bytes.end(), at, at + element);
  };
  for_each_index(shape, [&](const Extents& out_index) {
    Extents index = out_index;
    switch (test_case.op) {
      case CollectiveOp::kAllGather: {
        const std::int64_t extent = test_case.in_shape[dim];
        index[dim] = out_index[dim] % extent;
        append_element(static_cast<int>(out_index[dim] / extent), index);
        break;
      }
      case CollectiveOp::kReduceScatter: {
        index[dim] = rank * shape[dim] + out_index[dim];
        float sum = 0.0F;
        for (int s = 0; s < world_size; ++s) sum += addend(s, linear(index, test_case.in_shape));
        unsigned char number[sizeof(float)];
        put_number(number, test_case.dtype, sum);
        bytes.insert(bytes.end(), number, number + element);
        break;
      }
      case CollectiveOp::kAllToAll:
        index[0] = rank;
        append_element(static_cast<int>(out_index[0]), index);
        break;
    }
  });
  return bytes;
}

std::string check_case(const CollectiveCase& test_case, Collective& collective, Device& device,
                       Stream stream) {
  const int world_size = collective.world_size();
  const std::string where =
      describe(test_case) + " on rank " + std::to_string(collective.rank()) + ": ";
  LaidOutTensor in(device, test_case.dtype, test_case.in_shape, test_case.in_layout, "in", stream);
  LaidOutTensor out(device, test_case.dtype, out_shape(test_case, world_size), test_case.out_layout,
                    "out", stream);
  const std::vector<unsigned char> input = input_bytes(test_case, collective.rank());
  in.write(input, stream);
  call(test_case, collective, out.view(), in.view(), stream);

  const std::vector<unsigned char> expected =
      expected_bytes(test_case, collective.rank(), world_size);
  const std::vector<unsigned char> got = out.read(stream);
  const auto differing = std::mismatch(expected.begin(), expected.end(), got.begin());
  if (differing.first != expected.end()) {
    return where + "byte " + std::to_string(differing.first - expected.begin()) + " of " +
           std::to_string(expected.size()) + " is " + std::to_string(*differing.second) +
           ", expected " + std::to_string(*differing.first);
  }
  if (out.overwritten_bytes(stream) != 0) return where + "wrote outside of the output";
  if (in.overwritten_bytes(stream) != 0 || in.read(stream) != input) {
    return where + "changed the input";
  }
  return {};
}

}  // namespace mladcp
