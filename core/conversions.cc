#include "core/conversions.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

// out[i] = element(in[i])
template <typename Out, typename In, typename Element>
void for_each_element(std::span<Out> out, std::span<const In> in, const Element& element) {
  if (out.size() != in.size()) {
    throw InvalidArgument("conversion: out holds " + std::to_string(out.size()) +
                          " elements, in holds " + std::to_string(in.size()) +
                          "; both must have the same size");
  }
  // Blocks of constant length in local arrays, which can alias nothing: GCC makes them SIMD code at
  // -O2 already.
  constexpr std::size_t kBlock = 64;
  std::size_t i = 0;
  for (; i + kBlock <= in.size(); i += kBlock) {
    std::array<In, kBlock> from;
    std::array<Out, kBlock> to;
    std::memcpy(from.data(), &in[i], sizeof(from));
    for (std::size_t j = 0; j < kBlock; ++j) to[j] = element(from[j]);
    std::memcpy(&out[i], to.data(), sizeof(to));
  }
  for (; i < in.size(); ++i) out[i] = element(in[i]);
}

void check_scale(float scale) {
  if (scale > 0.0f && std::isfinite(scale)) return;
  throw InvalidArgument("conversion: scale is " + std::to_string(scale) +
                        "; a scale must be positive and finite");
}

}  // namespace

void convert(std::span<Float8E4M3> out, std::span<const float> in) {
  for_each_element(out, in, [](float x) { return Float8E4M3::from_float(x); });
}

void convert(std::span<BFloat16> out, std::span<const float> in) {
  for_each_element(out, in, [](float x) { return BFloat16::from_float(x); });
}

void convert(std::span<float> out, std::span<const Float8E4M3> in) {
  for_each_element(out, in, [](Float8E4M3 x) { return x.to_float(); });
}

void convert(std::span<float> out, std::span<const BFloat16> in) {
  for_each_element(out, in, [](BFloat16 x) { return x.to_float(); });
}

void quantize(std::span<Float8E4M3> out, std::span<const float> in, float scale) {
  check_scale(scale);
  for_each_element(out, in, [scale](float x) { return quantize(x, scale); });
}

void quantize(std::span<Float8E4M3> out, std::span<const BFloat16> in, float scale) {
  check_scale(scale);
  for_each_element(out, in, [scale](BFloat16 x) { return quantize(x.to_float(), scale); });
}

void dequantize(std::span<float> out, std::span<const Float8E4M3> in, float scale) {
  check_scale(scale);
  for_each_element(out, in, [scale](Float8E4M3 x) { return x.to_float() * scale; });
}

void dequantize(std::span<BFloat16> out, std::span<const Float8E4M3> in, float scale) {
  check_scale(scale);
  for_each_element(out, in,
                   [scale](Float8E4M3 x) { return BFloat16::from_float(x.to_float() * scale); });
}

std::int64_t count_saturated(std::span<const float> in, float scale) {
  check_scale(scale);
  std::int64_t count = 0;
  for (const float x : in) count += saturates(x, scale) ? 1 : 0;
  return count;
}

float calibrated_scale(std::span<const float> in) {
  float largest = 0.0f;
  for (const float x : in) {
    if (std::isfinite(x) && std::fabs(x) > largest) largest = std::fabs(x);
  }
  const float scale = largest / Float8E4M3::kMax;
  return scale < std::numeric_limits<float>::min() ? 1.0f : scale;
}

}  // namespace mladcp
