#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace mladcp {
namespace {

static_assert(BFloat16::from_float(1.0f).bits == 0x3F80);
static_assert(BFloat16::from_bits(0x3F80).to_float() == 1.0f);

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

bool is_nan_code(int code) { return (code & 0x7FFF) > 0x7F80; }

// The magnitude of a code 0..0x7F80 by its fields; infinity stands for the value 2^128 that
// rounding takes it for.
double magnitude_of_fields(int code) {
  const int exponent = code >> 7;
  const int mantissa = code & 0x7F;
  return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}

// Rounding by its definition: x lies between the codes `below` and `below + 1`.
int nearest_of_two(double x, int below) {
  const double down = x - magnitude_of_fields(below);
  const double up = magnitude_of_fields(below + 1) - x;
  if (down == up) return below % 2 == 0 ? below : below + 1;
  return down < up ? below : below + 1;
}

TEST(BFloat16, EveryCodeHasTheValueOfItsFieldsAndSurvives) {
  for (int code = 0; code < 65536; ++code) {
    const auto value = BFloat16::from_bits(static_cast<std::uint16_t>(code));
    const float as_float = value.to_float();
    const BFloat16 back = BFloat16::from_float(as_float);
    if (is_nan_code(code)) {
      ASSERT_TRUE(std::isnan(as_float)) << code;
      ASSERT_EQ(back.bits, 0x7FFF) << code;
      continue;
    }
    ASSERT_EQ(back.bits, code);
    ASSERT_EQ(std::signbit(as_float), code >= 0x8000) << code;
    if ((code & 0x7FFF) == 0x7F80) {
      ASSERT_TRUE(std::isinf(as_float));
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(as_float)), magnitude_of_fields(code & 0x7FFF));
    }
  }
}

TEST(BFloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (int below = 0; below < 0x7F80; ++below) {
    // The tie, both its neighbours in fp32, and the floats next to the two codes.
    const std::uint32_t base = static_cast<std::uint32_t>(below) << 16;
    for (const std::uint32_t low :
         {0x0000u, 0x0001u, 0x5A3Cu, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = float_of(base | low);
      const int expected = nearest_of_two(x, below);
      ASSERT_EQ(BFloat16::from_float(x).bits, expected) << std::hexfloat << x;
      ASSERT_EQ(BFloat16::from_float(-x).bits, expected | 0x8000) << std::hexfloat << x;
    }
  }
}

TEST(BFloat16, Corners) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(BFloat16::from_float(-0.0f).bits, 0x8000);
  EXPECT_EQ(BFloat16::from_float(kInfinity).bits, 0x7F80);
  EXPECT_EQ(BFloat16::from_float(-kInfinity).bits, 0xFF80);
  EXPECT_EQ(BFloat16::from_float(0x1.fffffep127f).bits, 0x7F80);  // rounds up to infinity
  EXPECT_EQ(BFloat16::from_float(0x1p-149f).bits, 0x0000);
  for (const std::uint32_t pattern : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(BFloat16::from_float(float_of(pattern)).bits, 0x7FFF) << std::hex << pattern;
  }
}

}  // namespace
}  // namespace mladcp
