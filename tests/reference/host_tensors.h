// Host tensors for the tests of reference/: filled, read back, poisoned, strided.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/float8_e4m3.h"
#include "core/tensor.h"
#include "reference/host_rows.h"

namespace mladcp {

inline constexpr Stream kHostStream{};

// Numbers with a mean: zero-mean data hides faults.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : engine_(seed) {}

  float normal(float mean = 0.0F, float sigma = 1.0F) {
    return mean + sigma * std::normal_distribution<float>()(engine_);
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

inline Tensor host_tensor(DType dtype, const Shape& shape, const char* name) {
  return Tensor(host_device(), dtype, shape, name);
}

// Every byte 0xFF: NaN in e4m3, bf16 and fp32, -1 in integers.
inline void poison(const TensorView& view) {
  host_device().fill_bytes(view.data, 0xFF, static_cast<std::size_t>(view.bytes()), kHostStream);
}

// A tensor of any floating dtype from a function of its flat index.
template <typename Value>
Tensor filled(DType dtype, const Shape& shape, const char* name, const Value& value) {
  Tensor tensor = host_tensor(dtype, shape, name);
  for (std::int64_t i = 0; i < tensor.view().elements(); ++i) {
    const auto x = static_cast<float>(value(i));
    if (dtype == DType::kF32) tensor.as<float>()[i] = x;
    if (dtype == DType::kBF16) tensor.as<BFloat16>()[i] = BFloat16::from_float(x);
    if (dtype == DType::kE4M3) tensor.as<Float8E4M3>()[i] = Float8E4M3::from_float(x);
  }
  return tensor;
}

inline Tensor random_tensor(DType dtype, const Shape& shape, const char* name, Numbers& numbers,
                            float mean = 0.25F, float sigma = 1.0F) {
  return filled(dtype, shape, name, [&](std::int64_t) { return numbers.normal(mean, sigma); });
}

template <typename Integer>
Tensor index_tensor(const std::vector<Integer>& values, const char* name) {
  const DType dtype = sizeof(Integer) == 8 ? DType::kI64 : DType::kI32;
  Tensor tensor = host_tensor(dtype, {static_cast<std::int64_t>(values.size())}, name);
  std::copy(values.begin(), values.end(), tensor.as<Integer>());
  return tensor;
}

// Elements in row-major order as fp32, whatever the strides.
inline std::vector<float> values_of(const TensorView& view) {
  const Tensor dense = copied_to_host(view, kHostStream);
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  TensorView flat = dense.view().reshaped({view.elements()});
  if (!values.empty()) load_row(values.data(), flat, 0);
  return values;
}

// Bytes in row-major order: for data that only moves.
inline std::vector<unsigned char> bytes_of(const TensorView& view) {
  const Tensor dense = copied_to_host(view, kHostStream);
  const auto* data = dense.as<const unsigned char>();
  return {data, data + view.bytes()};
}

// A tensor whose rows lie apart: the narrowed view of a wider, poisoned one. `storage` keeps it.
inline TensorView strided_copy(const TensorView& source, Tensor& storage) {
  Shape wide = source.shape;
  const int last = source.rank() - 1;
  wide[last] += 3;
  storage = host_tensor(source.dtype, wide, source.name);
  poison(storage);
  const TensorView view = storage.view().narrow(last, 1, source.shape[last]);
  host_device().copy_strided(view, source, kHostStream);
  return view;
}

}  // namespace mladcp
