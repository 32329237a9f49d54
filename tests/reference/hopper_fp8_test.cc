#include "reference/hopper_fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "core/error.h"
#include "harness/safetensors.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

Float8E4M3 e4m3(float value) { return Float8E4M3::from_float(value); }
BFloat16 bf16(float value) { return BFloat16::from_float(value); }

// value = (-1)^s * 2^exponent * (1 or 0).mantissa, as the tensor core sees an operand.
struct Decoded {
  double value;
  int exponent;
};

Decoded decoded(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int field = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const int exponent = std::max(field, 1) - ((1 << (exponent_bits - 1)) - 1);
  const int significand = mantissa + (field == 0 ? 0 : 1 << mantissa_bits);
  const double sign = ((bits >> (exponent_bits + mantissa_bits)) & 1u) != 0 ? -1.0 : 1.0;
  return {sign * std::ldexp(significand, exponent - mantissa_bits), exponent};
}

Decoded decoded(Float8E4M3 x) { return decoded(x.bits, 4, 3); }
Decoded decoded(Float16 x) { return decoded(x.bits, 5, 10); }
Decoded decoded(BFloat16 x) { return decoded(x.bits, 8, 7); }

double multiple_toward_zero(double x, int unit_exponent) {
  return std::ldexp(std::trunc(std::ldexp(x, -unit_exponent)), unit_exponent);
}

// The rule of the header, word by word; double holds every number in it.
template <typename Operand>
float dot_by_the_rule(const std::vector<Operand>& a, const std::vector<Operand>& b, float c,
                      std::size_t depth, int fraction, int width) {
  double accumulator = c;
  for (std::size_t first = 0; first < a.size(); first += depth) {
    int largest = std::numeric_limits<int>::min();
    if (accumulator != 0) largest = std::max(std::ilogb(accumulator), -126);
    for (std::size_t k = first; k < first + depth; ++k) {
      if (decoded(a[k]).value * decoded(b[k]).value == 0) continue;
      largest = std::max(largest, decoded(a[k]).exponent + decoded(b[k]).exponent);
    }
    if (largest == std::numeric_limits<int>::min()) continue;
    double sum = multiple_toward_zero(accumulator, largest - fraction);
    for (std::size_t k = first; k < first + depth; ++k) {
      sum += multiple_toward_zero(decoded(a[k]).value * decoded(b[k]).value, largest - fraction);
    }
    // fp32 has no unit below 2^-149.
    const int unit = sum == 0 ? 0 : std::max(std::ilogb(sum), -126) - (width - 1);
    accumulator = multiple_toward_zero(sum, std::max(unit, -149));
    if (std::fabs(accumulator) >= 0x1p128) {
      return std::copysign(std::numeric_limits<float>::infinity(), accumulator < 0 ? -1.0f : 1.0f);
    }
  }
  return static_cast<float>(accumulator);
}

template <typename Operand>
std::vector<Operand> filled(std::size_t size, Operand value) {
  return std::vector<Operand>(size, value);
}

// c + the products of the pairs given, the rest of the instruction zero.
template <typename Operand>
float one_instruction(std::vector<Operand> a, std::vector<Operand> b, float c, std::size_t depth) {
  a.resize(depth);
  b.resize(depth);
  return hopper_dot(std::span<const Operand>(a), std::span<const Operand>(b), c);
}

float dot(const std::vector<Float8E4M3>& a, const std::vector<Float8E4M3>& b, float c) {
  return hopper_dot(std::span<const Float8E4M3>(a), std::span<const Float8E4M3>(b), c);
}

TEST(HopperModel, GivesEveryBitOfTheGoldenDots) {
  const SafetensorsFile golden =
      read_safetensors(test_data_path("golden/hopper_fp8_dots.safetensors"));
  const auto rows = static_cast<std::size_t>(golden.tensor("a").size(0));
  const auto depth = static_cast<std::size_t>(golden.tensor("a").size(1));
  ASSERT_EQ(rows, 600u);
  const auto* a = golden.tensor("a").as<const Float8E4M3>();
  const auto* b = golden.tensor("b").as<const Float8E4M3>();
  const auto* c = golden.tensor("c").as<const float>();
  const auto* d = golden.tensor("d").as<const float>();
  for (std::size_t i = 0; i < rows; ++i) {
    const float got =
        hopper_dot(std::span(a + i * depth, depth), std::span(b + i * depth, depth), c[i]);
    EXPECT_EQ(bits_of(got), bits_of(d[i])) << "dot " << i << ": " << got << ", wanted " << d[i];
  }
}

TEST(HopperModel, LongChainsOfConstantsStandStillWhereTheHardwareDoes) {
  struct Case {
    float a;
    float b;
    float last;
  };
  for (const Case& c :
       {Case{1.0f, 1.0f, 16'384.0f}, {1.0f, 1.125f, 16'388.0f}, {1.5f, 1.5f, 32'776.0f}}) {
    constexpr std::size_t kLong = 65'536;
    EXPECT_EQ(dot(filled(kLong, e4m3(c.a)), filled(kLong, e4m3(c.b)), 0), c.last)
        << c.a << " * " << c.b;
  }
  // Right until it stands still.
  EXPECT_EQ(dot(filled(16'352, e4m3(1)), filled(16'352, e4m3(1)), 0), 16'352.0f);
  // A promotion to fp32 every 64 keys keeps all of them.
  float promoted = 0;
  for (int page = 0; page < 1024; ++page) {
    promoted += dot(filled(64, e4m3(1)), filled(64, e4m3(1)), 0);
  }
  EXPECT_EQ(promoted, 65'536.0f);
}

TEST(HopperModel, ChainsOfOnesInFp16AndBf16AreExactBeyond2To24) {
  constexpr float kStart = 0x1p24f - 160;
  const std::vector<Float16> halves(320, Float16{0x3C00});
  const std::vector<BFloat16> bfloats(320, bf16(1));
  EXPECT_EQ(hopper_dot(std::span<const Float16>(halves), std::span<const Float16>(halves), kStart),
            0x1p24f + 160);
  EXPECT_EQ(
      hopper_dot(std::span<const BFloat16>(bfloats), std::span<const BFloat16>(bfloats), kStart),
      0x1p24f + 160);
}

TEST(HopperModel, CountsExponentsAsTheHardwareDoes) {
  const auto sum = [](std::vector<Float8E4M3> a, std::vector<Float8E4M3> b, float c) {
    return one_instruction(std::move(a), std::move(b), c, 32);
  };
  // 1.5 * 1.5 = 2.25 has exponent 0, so that 2^-13 survives beside it.
  EXPECT_EQ(sum({e4m3(1.5f), e4m3(1.5f)}, {e4m3(1.5f), e4m3(-1.5f)}, 0x1p-13f), 0x1p-13f);
  EXPECT_EQ(sum({e4m3(1.5f), e4m3(1.5f)}, {e4m3(1.5f), e4m3(-1.5f)}, 0x1p-14f), 0.0f);
  // 2^-9 is subnormal and counts with exponent -6, so that 2^-20 is lost beside it.
  EXPECT_EQ(sum({e4m3(0x1p-9f), e4m3(-0x1p-9f)}, {e4m3(1), e4m3(1)}, 0x1p-19f), 0x1p-19f);
  EXPECT_EQ(sum({e4m3(0x1p-9f), e4m3(-0x1p-9f)}, {e4m3(1), e4m3(1)}, 0x1p-20f), 0.0f);
  // Zero operands have no exponent: 0 * 448 does not push the accumulator out.
  EXPECT_EQ(sum({e4m3(0), e4m3(0x1p-6f)}, {e4m3(448), e4m3(1)}, 0x1p-19f), 0x1p-6f + 0x1p-19f);
  // Without a product the accumulator keeps its 14 leading bits, however small.
  EXPECT_EQ(sum({}, {}, 0x1.0008p-100f), 0x1.0008p-100f);
  EXPECT_EQ(sum({}, {}, 0x1.000Cp-100f), 0x1.0008p-100f);
  EXPECT_EQ(sum({}, {}, -0x1p-149f), -0.0f);
}

TEST(HopperModel, TruncatesTowardZeroOnBothSides) {
  // 1.125 * 2^-12 is 2.25 units of 2^-13, which count as 2; rounding down would make -2.25 a -3.
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(one_instruction<Float8E4M3>({e4m3(0x1p-6f)}, {e4m3(-sign * 0x1.2p-6f)}, sign, 32),
              sign * (1 - 0x1p-12f));
    EXPECT_EQ(one_instruction<Float8E4M3>({e4m3(0x1p-6f)}, {e4m3(sign * 0x1.2p-6f)}, sign, 32),
              sign * (1 + 0x1p-12f));
  }
}

TEST(HopperModel, TruncatesTowardZeroBelowTheSmallestNormalFp32) {
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(one_instruction<BFloat16>({bf16(0x1p-75f)}, {bf16(sign * 0x1.8p-75f)}, 0, 16), 0.0f);
    EXPECT_EQ(one_instruction<BFloat16>({bf16(0x1p-74f)}, {bf16(sign * 0x1.cp-75f)}, 0, 16),
              sign * 0x1p-149f);
  }
}

TEST(HopperModel, EqualsTheRuleOnRandomE4M3Dots) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 4'000; ++i) {
    const std::size_t depth = 32 * (1 + random() % 18);
    std::vector<Float8E4M3> a(depth);
    std::vector<Float8E4M3> b(depth);
    for (std::size_t k = 0; k < depth; ++k) {
      if (i % 2 == 0) {  // any code but NaN
        do a[k].bits = static_cast<std::uint8_t>(random());
        while (a[k].is_nan());
        do b[k].bits = static_cast<std::uint8_t>(random());
        while (b[k].is_nan());
      } else {  // mean and spread, so that signs agree and errors add up
        a[k] = e4m3(normal(random) + 0.5f);
        b[k] = e4m3(std::ldexp(normal(random), -static_cast<int>(random() % 8)));
      }
    }
    const float c = std::ldexp(normal(random), static_cast<int>(random() % 60) - 40);
    ASSERT_EQ(bits_of(dot(a, b, c)), bits_of(dot_by_the_rule(a, b, c, 32, 13, 14))) << "dot " << i;
  }
}

template <typename Operand>
void expect_rule_on_random_dots(std::uint32_t exponent_mask) {
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2'000; ++i) {
    const std::size_t depth = 16 * (1 + random() % 9);
    std::vector<Operand> a(depth);
    std::vector<Operand> b(depth);
    const auto draw = [&](Operand& x) {
      do x.bits = static_cast<std::uint16_t>(random());
      while ((x.bits & exponent_mask) == exponent_mask);
      // Half of the dots with operands from a few binades below 2, so that sums have many bits.
      if (i % 2 == 0) {
        x.bits = static_cast<std::uint16_t>((x.bits & 0x83FF) | (0x3C00 ^ (x.bits & 0x400)));
      }
    };
    for (std::size_t k = 0; k < depth; ++k) {
      draw(a[k]);
      draw(b[k]);
    }
    const float c = std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
    const float wanted = dot_by_the_rule(a, b, c, 16, 25, 24);
    const float got = hopper_dot(std::span<const Operand>(a), std::span<const Operand>(b), c);
    ASSERT_EQ(bits_of(got), bits_of(wanted)) << "dot " << i << ": " << got << ", " << wanted;
  }
}

TEST(HopperModel, EqualsTheRuleOnRandomFp16Dots) { expect_rule_on_random_dots<Float16>(0x7C00); }

TEST(HopperModel, EqualsTheRuleOnRandomBf16Dots) { expect_rule_on_random_dots<BFloat16>(0x7F80); }

TEST(HopperModel, ProductIsAllDots) {
  constexpr std::size_t kDepth = 96;
  std::mt19937 random(31);
  const auto random_codes = [&](std::size_t rows) {
    std::vector<Float8E4M3> codes(rows * kDepth);
    for (Float8E4M3& code : codes) code.bits = static_cast<std::uint8_t>(random() & 0xF7u);
    return codes;
  };
  for (const std::size_t n_size : {0, 1, 31, 32, 33, 77}) {
    SCOPED_TRACE(n_size);
    constexpr std::size_t kRows = 5;
    std::vector<Float8E4M3> a = random_codes(kRows);
    std::vector<Float8E4M3> b = random_codes(n_size);
    a[3 * kDepth + 17].bits = 0xFF;
    if (n_size > 2) b[2 * kDepth + 95].bits = 0x7F;
    std::vector<float> out(kRows * n_size, -7.0f);
    hopper_product(out, a, b, kDepth);
    for (std::size_t m = 0; m < kRows; ++m) {
      for (std::size_t n = 0; n < n_size; ++n) {
        const float wanted =
            hopper_dot(std::span<const Float8E4M3>(a).subspan(m * kDepth, kDepth),
                       std::span<const Float8E4M3>(b).subspan(n * kDepth, kDepth), 0);
        ASSERT_EQ(bits_of(out[m * n_size + n]), bits_of(wanted)) << m << ", " << n;
        ASSERT_EQ(std::isnan(wanted), m == 3 || n == 2);
      }
    }
  }
}

TEST(HopperModel, NansAndInfinitiesPropagate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Float8E4M3 nan = Float8E4M3::from_bits(0xFF);
  EXPECT_EQ(bits_of(one_instruction<Float8E4M3>({nan}, {e4m3(0)}, 1, 32)), 0x7FFFFFFFu);
  EXPECT_EQ(bits_of(one_instruction<Float8E4M3>({e4m3(1)}, {e4m3(1)}, -kInfinity, 32)),
            bits_of(-kInfinity));
  const BFloat16 infinity = bf16(kInfinity);
  EXPECT_EQ(one_instruction<BFloat16>({infinity}, {bf16(-2)}, 1, 16), -kInfinity);
  EXPECT_TRUE(std::isnan(one_instruction<BFloat16>({infinity}, {bf16(0)}, 1, 16)));
  EXPECT_TRUE(std::isnan(one_instruction<BFloat16>({infinity}, {bf16(1)}, -kInfinity, 16)));
  EXPECT_EQ(one_instruction<Float16>({Float16{0x7C00}}, {Float16{0x3C00}}, 1, 16), kInfinity);
  EXPECT_EQ(one_instruction<BFloat16>({bf16(0x1p127f)}, {bf16(-0x1p100f)}, 1, 16), -kInfinity);
}

TEST(HopperModel, RefusesSizesThatAreNoInstructions) {
  const std::vector<Float8E4M3> row(48);
  const std::vector<Float8E4M3> shorter(32);
  EXPECT_THAT([&] { dot(row, row, 0); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("takes 32")));
  EXPECT_THAT([&] { dot(row, shorter, 0); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("same size")));
  std::vector<float> out(2);
  for (const int depth : {0, -32, 32, 48}) {
    EXPECT_THROW(hopper_product(out, row, shorter, depth), InvalidArgument) << depth;
  }
}

}  // namespace
}  // namespace mladcp
