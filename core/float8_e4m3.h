#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace mladcp {

// OCP 8-bit float e4m3 ("e4m3fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits. Largest value 448,
// smallest normal 2^-6, subnormals are multiples of 2^-9; no infinity; 0x7F and 0xFF are NaN.
// Storage only; arithmetic is done in fp32. Header-only and constexpr, so that CUDA host code can
// use it. Source: OCP 8-bit Floating Point Specification, revision 1.0.
struct Float8E4M3 {
  std::uint8_t bits = 0;

  static constexpr float kMax = 448.0f;

  static constexpr Float8E4M3 from_bits(std::uint8_t bits) { return Float8E4M3{bits}; }

  // Saturating, to nearest, ties to even: 464 and more (infinity too) becomes 448, 2^-10 and less
  // becomes 0 with the sign kept. Every NaN becomes 0x7F, as cvt.rn.satfinite.e4m3x2.f32 and
  // __nv_cvt_float_to_fp8 have it. Free of branches, so that loops over it become SIMD code;
  // expects the default rounding mode.
  static constexpr Float8E4M3 from_float(float value) {
    const auto source = std::bit_cast<std::int32_t>(value);
    const std::int32_t magnitude = source & 0x7FFFFFFF;
    const std::int32_t clamped = select(magnitude < kMaxBits, magnitude, kMaxBits);
    const std::int32_t own_exponent = clamped & kExponentMask;
    const std::int32_t exponent = select(own_exponent > kMinExponent, own_exponent, kMinExponent);

    // The last bit of an fp32 that is 2^20 times larger is worth the last bit kept here. Adding
    // such a power of two rounds to that bit and leaves the count of it, 0 to 16, in the low bits.
    const std::int32_t rounder = exponent + (20 << 23);
    const std::int32_t rounded =
        std::bit_cast<std::int32_t>(std::bit_cast<float>(clamped) + std::bit_cast<float>(rounder));
    // A count of 8 is the leading bit, which the exponent field stands for; 16 carries into it.
    const std::int32_t code = ((exponent - kMinExponent) >> 20) + (rounded - rounder);

    const std::int32_t sign = (source >> 24) & 0x80;
    const bool is_nan = magnitude > kExponentMask;
    return Float8E4M3{static_cast<std::uint8_t>(select(is_nan, 0x7F, sign | code))};
  }

  // Exact. Both NaN codes become the fp32 NaN 0x7FFFFFFF, as the CUDA headers have it.
  constexpr float to_float() const;

  constexpr bool is_nan() const { return (bits & 0x7Fu) == 0x7Fu; }

  // Compares the codes: -0 differs from +0, a NaN equals itself.
  friend constexpr bool operator==(Float8E4M3 a, Float8E4M3 b) { return a.bits == b.bits; }

 private:
  // Parts of fp32 bit patterns: infinity, 448, and the exponent of 2^-6, the smallest normal.
  static constexpr std::int32_t kExponentMask = 0x7F800000;
  static constexpr std::int32_t kMaxBits = 0x43E00000;
  static constexpr std::int32_t kMinExponent = (127 - 6) << 23;

  // condition ? a : b by masks: the ternary becomes a branch, which keeps loops from being SIMD.
  static constexpr std::int32_t select(bool condition, std::int32_t a, std::int32_t b) {
    const std::int32_t mask = -static_cast<std::int32_t>(condition);
    return (a & mask) | (b & ~mask);
  }
};

static_assert(sizeof(Float8E4M3) == 1);

namespace internal {

constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t sign = (code & 0x80u) << 24;
    const std::uint32_t exponent = (code >> 3) & 0xFu;
    const std::uint32_t mantissa = code & 0x7u;
    float magnitude = 0.0f;
    if ((code & 0x7Fu) == 0x7Fu) {
      values[code] = std::bit_cast<float>(0x7FFFFFFFu);
      continue;
    }
    if (exponent == 0) {
      magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    } else {
      magnitude = std::bit_cast<float>(((exponent + 127 - 7) << 23) | (mantissa << 20));
    }
    values[code] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  return values;
}

inline constexpr std::array<float, 256> kE4M3Values = make_e4m3_values();

}  // namespace internal

constexpr float Float8E4M3::to_float() const { return internal::kE4M3Values[bits]; }

// The quantisation law: saturate(round_nearest_even(x / scale)), the division in fp32. A product
// with 1 / scale gives other codes for some inputs.
constexpr Float8E4M3 quantize(float value, float scale) {
  return Float8E4M3::from_float(value / scale);
}

// True when quantising clips the value: |x / scale| above 464, which would round to a code beyond
// 448. False for NaN.
constexpr bool saturates(float value, float scale) {
  const float ratio = value / scale;
  return ratio > 464.0f || ratio < -464.0f;
}

}  // namespace mladcp
