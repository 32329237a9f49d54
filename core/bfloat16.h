#pragma once

#include <bit>
#include <cstdint>

namespace mladcp {

// The upper half of an fp32: 1 sign, 8 exponent, 7 mantissa bits. Storage only; arithmetic is done
// in fp32. Header-only and constexpr, so that CUDA host code can use it.
struct BFloat16 {
  std::uint16_t bits = 0;

  static constexpr BFloat16 from_bits(std::uint16_t bits) { return BFloat16{bits}; }

  // Rounds to nearest, ties to even; overflow becomes infinity. Every NaN becomes 0x7FFF, as
  // __float2bfloat16 and cvt.rn.bf16.f32 have it.
  static constexpr BFloat16 from_float(float value) {
    const auto source = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t ties_to_even = (source >> 16) & 1u;
    const std::uint32_t rounded = (source + 0x7FFFu + ties_to_even) >> 16;
    const bool is_nan = (source & 0x7FFFFFFFu) > 0x7F800000u;
    return BFloat16{static_cast<std::uint16_t>(is_nan ? 0x7FFFu : rounded)};
  }

  // Exact for every value; a NaN keeps its sign and payload.
  constexpr float to_float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  // Compares the stored bits: -0 differs from +0, a NaN equals itself.
  friend constexpr bool operator==(BFloat16 a, BFloat16 b) { return a.bits == b.bits; }
};

static_assert(sizeof(BFloat16) == 2);

}  // namespace mladcp
