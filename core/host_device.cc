#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/conversions.h"
#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::size_t kAlignment = 256;

// The longest run of trailing dims that lies dense in every view, as one block of bytes.
struct DenseTail {
  int outer_dims = 0;
  std::int64_t elements = 1;
};

bool dense_up_to(const TensorView& view, int dim, std::int64_t elements) {
  return view.shape[dim] == 1 || view.strides[dim] == elements;
}

DenseTail dense_tail(std::span<const TensorView> views) {
  DenseTail tail{views[0].rank(), 1};
  while (tail.outer_dims > 0) {
    const int dim = tail.outer_dims - 1;
    for (const TensorView& view : views) {
      if (!dense_up_to(view, dim, tail.elements)) return tail;
    }
    tail.elements *= views[0].shape[dim];
    tail.outer_dims = dim;
  }
  return tail;
}

// Calls body(offsets) for every index of the outer dims; offsets are in elements, one per view.
template <typename Body>
void for_each_outer(std::span<const TensorView> views, int outer_dims, int dim,
                    std::span<std::int64_t> offsets, const Body& body) {
  if (dim == outer_dims) {
    body(offsets);
    return;
  }
  for (std::int64_t i = 0; i < views[0].shape[dim]; ++i) {
    for_each_outer(views, outer_dims, dim + 1, offsets, body);
    for (std::size_t v = 0; v < views.size(); ++v) offsets[v] += views[v].strides[dim];
  }
  for (std::size_t v = 0; v < views.size(); ++v) {
    offsets[v] -= views[v].strides[dim] * views[0].shape[dim];
  }
}

bool is_summable(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

void load(std::span<float> values, const TensorView& view, std::int64_t offset) {
  if (view.dtype == DType::kF32) {
    std::copy_n(view.as<const float>() + offset, values.size(), values.begin());
  } else {
    convert(values, std::span(view.as<const BFloat16>() + offset, values.size()));
  }
}

void store(const TensorView& view, std::int64_t offset, std::span<const float> values) {
  if (view.dtype == DType::kF32) {
    std::copy(values.begin(), values.end(), view.as<float>() + offset);
  } else {
    convert(std::span(view.as<BFloat16>() + offset, values.size()), values);
  }
}

void expect_same_shape(const TensorView& a, const TensorView& b) {
  if (!(a.shape == b.shape)) {
    throw InvalidArgument("copy between " + describe(a) + " and " + describe(b) +
                          ": the shapes must be equal");
  }
}

void expect_summable(const TensorView& out, std::span<const TensorView> inputs) {
  if (inputs.empty()) throw InvalidArgument("sum of no tensors into " + describe(out));
  for (const TensorView& input : inputs) {
    expect_same_shape(out, input);
    if (!is_summable(input.dtype) || input.dtype != inputs[0].dtype) {
      throw InvalidArgument("sum of " + describe(input) + ": inputs must all be fp32 or all bf16");
    }
  }
  if (!is_summable(out.dtype)) {
    throw InvalidArgument("sum into " + describe(out) + ": fp32 or bf16 only");
  }
}

// views: the output, then the inputs in rank order; `at`: where the dense block starts in each.
void sum_block(std::span<const TensorView> views, std::span<const std::int64_t> at,
               std::int64_t elements) {
  // Sums stay in registers and the first-level cache. The addition runs over the whole chunk: at a
  // constant length the compiler makes it SIMD code; what lies behind `count` is never stored.
  constexpr std::int64_t kChunk = 64;
  std::array<float, kChunk> sums{};
  std::array<float, kChunk> addend{};
  for (std::int64_t begin = 0; begin < elements; begin += kChunk) {
    const auto count = static_cast<std::size_t>(std::min(kChunk, elements - begin));
    load(std::span(sums).first(count), views[1], at[1] + begin);
    for (std::size_t v = 2; v < views.size(); ++v) {
      load(std::span(addend).first(count), views[v], at[v] + begin);
      for (std::size_t i = 0; i < kChunk; ++i) sums[i] += addend[i];
    }
    store(views[0], at[0] + begin, std::span(sums).first(count));
  }
}

class HostDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string_view description() const override { return "host"; }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* pointer =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (pointer == nullptr) {
      throw Error("host: no memory for " + std::to_string(bytes) +
                  " bytes; use fewer or shorter requests, fewer heads, or smaller pages");
    }
    return pointer;
  }
  void deallocate(void* pointer) noexcept override { std::free(pointer); }

  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}
  Event create_event() override { return {}; }
  void destroy_event(Event) noexcept override {}
  void record(Event, Stream) override {}
  void wait(Stream, Event) override {}

  void copy(void* destination, const void* source, std::size_t bytes, Stream) override {
    if (bytes != 0) std::memcpy(destination, source, bytes);
  }
  void copy_from_host(void* destination, const void* source, std::size_t bytes,
                      Stream stream) override {
    copy(destination, source, bytes, stream);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes,
                    Stream stream) override {
    copy(destination, source, bytes, stream);
  }
  void fill_bytes(void* destination, unsigned char value, std::size_t bytes, Stream) override {
    if (bytes != 0) std::memset(destination, value, bytes);
  }

  void copy_strided(const TensorView& destination, const TensorView& source, Stream) override {
    expect_same_shape(destination, source);
    const std::size_t element = size_bytes(source.dtype);
    if (size_bytes(destination.dtype) != element) {
      throw InvalidArgument("copy moves bytes: " + describe(destination) + " and " +
                            describe(source) + " differ in element size");
    }
    if (source.elements() == 0) return;
    const TensorView views[] = {destination, source};
    const DenseTail tail = dense_tail(views);
    const auto block_bytes = static_cast<std::size_t>(tail.elements) * element;
    std::int64_t offsets[] = {0, 0};
    for_each_outer(views, tail.outer_dims, 0, offsets, [&](std::span<const std::int64_t> at) {
      std::memcpy(destination.as<unsigned char>() + at[0] * static_cast<std::int64_t>(element),
                  source.as<const unsigned char>() + at[1] * static_cast<std::int64_t>(element),
                  block_bytes);
    });
  }

  void sum_in_rank_order(const TensorView& out, std::span<const TensorView> inputs,
                         Stream) override {
    expect_summable(out, inputs);
    if (out.elements() == 0) return;
    std::vector<TensorView> views = {out};
    views.insert(views.end(), inputs.begin(), inputs.end());
    const DenseTail tail = dense_tail(views);
    std::vector<std::int64_t> offsets(views.size(), 0);
    for_each_outer(views, tail.outer_dims, 0, offsets,
                   [&](std::span<const std::int64_t> at) { sum_block(views, at, tail.elements); });
  }
};

}  // namespace

Device& host_device() {
  // Never destroyed: tensors with static lifetime may outlive any order of destruction.
  static HostDevice& device = *new HostDevice;
  return device;
}

}  // namespace mladcp
