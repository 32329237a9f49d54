#include "core/float8_e4m3.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace mladcp {
namespace {

static_assert(Float8E4M3::from_float(1.0f).bits == 0x38);
static_assert(Float8E4M3::from_bits(0x38).to_float() == 1.0f);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a code by the fields of the OCP specification. Not for the NaN codes.
double value_of_fields(int code) {
  const int exponent = (code >> 3) & 0xF;
  const int mantissa = code & 0x7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Rounding by its definition: of the codes with the sign of x the one whose value is nearest, of
// two equally near the even one. Above 448 that is 448.
std::uint8_t nearest_code(float x) {
  if (std::isnan(x)) return 0x7F;
  int nearest = 0;
  double nearest_distance = std::numeric_limits<double>::infinity();
  const double magnitude = std::isinf(x) ? 1e30 : std::fabs(static_cast<double>(x));
  for (int code = 0; code <= 0x7E; ++code) {
    const double distance = std::fabs(magnitude - value_of_fields(code));
    if (distance < nearest_distance || (distance == nearest_distance && code % 2 == 0)) {
      nearest = code;
      nearest_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(nearest | (std::signbit(x) ? 0x80 : 0));
}

void expect_nearest(float x) {
  EXPECT_EQ(Float8E4M3::from_float(x).bits, nearest_code(x)) << std::hexfloat << x;
}

TEST(Float8E4M3, EveryCodeHasTheValueOfItsFields) {
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    const auto value = Float8E4M3::from_bits(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(value.is_nan());
      EXPECT_EQ(bits_of(value.to_float()), 0x7FFFFFFFu);
    } else {
      EXPECT_FALSE(value.is_nan());
      EXPECT_EQ(bits_of(value.to_float()), bits_of(static_cast<float>(value_of_fields(code))));
    }
  }
}

TEST(Float8E4M3, EveryCodeSurvivesTheWayToFloatAndBack) {
  for (int code = 0; code < 256; ++code) {
    const auto value = Float8E4M3::from_bits(static_cast<std::uint8_t>(code));
    EXPECT_EQ(Float8E4M3::from_float(value.to_float()).bits, code == 0xFF ? 0x7F : code);
  }
}

TEST(Float8E4M3, RoundsToNearestEvenRoundEveryTie) {
  for (int code = 0; code <= 0x7E; ++code) {
    const double next = code == 0x7E ? 480.0 : value_of_fields(code + 1);
    const auto tie = static_cast<float>((value_of_fields(code) + next) / 2);
    const auto value = static_cast<float>(value_of_fields(code));
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInfinity), value,
                          std::nextafter(value, 0.0f), std::nextafter(value, kInfinity)}) {
      expect_nearest(x);
      expect_nearest(-x);
    }
  }
}

TEST(Float8E4M3, RoundsSampledFloatsToTheNearestCode) {
  // A stride coprime to 2^32 visits all exponents, signs, NaNs and fp32 subnormals.
  constexpr std::uint32_t kStride = 42'949'673;
  std::uint32_t pattern = 0;
  for (int i = 0; i < 100'000; ++i, pattern += kStride) expect_nearest(float_of(pattern));
  // The patterns whose values are no more than a factor 2 outside of the range of the format.
  for (std::uint32_t p = bits_of(0x1p-11f); p < bits_of(1024.0f); p += 7919) {
    expect_nearest(float_of(p));
    expect_nearest(-float_of(p));
  }
}

TEST(Float8E4M3, CornersOfTheConversion) {
  struct Row {
    float x;
    int code;
  };
  const std::vector<Row> rows = {
      {448.0f, 0x7E},
      {449.0f, 0x7E},
      {464.0f, 0x7E},
      {465.0f, 0x7E},
      {-448.0f, 0xFE},
      {-465.0f, 0xFE},
      {kInfinity, 0x7E},
      {-kInfinity, 0xFE},
      {0x1.fffffep127f, 0x7E},
      {1.0f, 0x38},
      {0.0f, 0x00},
      {-0.0f, 0x80},
      {0x1p-9f, 0x01},
      {-0x1p-9f, 0x81},
      {0x1p-10f, 0x00},
      {-0x1p-10f, 0x80},
      {0x1.000002p-10f, 0x01},
      {0x1p-149f, 0x00},
      {0x1.8p-9f, 0x02},
      {0x1p-6f, 0x08},
      // The ties 0x1.1p0 and 0x1.3p0 lie within half an fp16 ulp: a detour over fp16 would round
      // onto the tie first and then to the even code 0x38 or 0x3A.
      {float_of(0x3f880001), 0x39},
      {float_of(0x3f97fffe), 0x39},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(Float8E4M3::from_float(row.x).bits, row.code) << std::hexfloat << row.x;
  }
}

TEST(Float8E4M3, EveryNanBecomesTheCanonicalOne) {
  for (const std::uint32_t pattern :
       {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    EXPECT_EQ(Float8E4M3::from_float(float_of(pattern)).bits, 0x7F) << std::hex << pattern;
  }
}

TEST(Float8E4M3, QuantisesByDivisionInFp32) {
  struct Row {
    std::uint32_t x;
    float scale;
    int code;
    int code_by_reciprocal;
  };
  for (const Row& row : {Row{0x3b466666, 0.1f, 0x0F, 0x10}, Row{0x3d63ffff, 3.0f, 0x09, 0x0A}}) {
    const float x = float_of(row.x);
    EXPECT_EQ(quantize(x, row.scale).bits, row.code);
    // The row would prove nothing if the product gave the same code.
    EXPECT_EQ(Float8E4M3::from_float(x * (1.0f / row.scale)).bits, row.code_by_reciprocal);
  }
  EXPECT_EQ(quantize(-0.0f, 3.0f).bits, 0x80);
  EXPECT_EQ(quantize(kInfinity, 0.1f).bits, 0x7E);
  EXPECT_EQ(quantize(0x1p127f, 0x1p-10f).bits, 0x7E);  // the quotient overflows fp32
}

TEST(Float8E4M3, CountsAsSaturatedWhatRoundsBeyond448) {
  EXPECT_FALSE(saturates(448.0f, 1.0f));
  EXPECT_FALSE(saturates(464.0f, 1.0f));
  EXPECT_TRUE(saturates(std::nextafter(464.0f, kInfinity), 1.0f));
  EXPECT_TRUE(saturates(-465.0f, 1.0f));
  EXPECT_TRUE(saturates(-kInfinity, 1.0f));
  EXPECT_FALSE(saturates(std::numeric_limits<float>::quiet_NaN(), 1.0f));
  // A RoPE part of 1 under a scale made for latents up to 0.08 reads back as 0.08.
  const float latent_scale = 0.08f / 448.0f;
  EXPECT_TRUE(saturates(1.0f, latent_scale));
  EXPECT_EQ(quantize(1.0f, latent_scale).to_float() * latent_scale, 448.0f * latent_scale);
  EXPECT_FALSE(saturates(0.08f, latent_scale));
}

}  // namespace
}  // namespace mladcp
