#include "core/conversions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 127, 577};

// Values over the whole range of both formats, with the special ones at both ends, so that the
// blocks and the rest of an array see them.
std::vector<float> sample(std::size_t size) {
  std::vector<float> values(size);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.3f, 1.0f);
  for (float& x : values) x = std::ldexp(normal(random), static_cast<int>(random() % 24) - 12);
  const std::vector<float> special = {std::numeric_limits<float>::quiet_NaN(),
                                      -std::numeric_limits<float>::infinity(), 464.0f, -0.0f,
                                      0x1p-10f};
  for (std::size_t i = 0; i < special.size() && i < size; ++i) {
    values[i] = special[i];
    values[size - 1 - i] = special[i];
  }
  return values;
}

void expect_same_bits(float got, float wanted) {
  if (std::isnan(wanted)) {
    EXPECT_TRUE(std::isnan(got));
  } else {
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(std::signbit(got), std::signbit(wanted));
  }
}

TEST(Conversions, ConvertEveryElementAsTheScalarFunctionDoes) {
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<float> in = sample(size);
    std::vector<Float8E4M3> e4m3(size);
    std::vector<BFloat16> bf16(size);
    std::vector<float> from_e4m3(size);
    std::vector<float> from_bf16(size);
    convert(e4m3, in);
    convert(bf16, in);
    convert(from_e4m3, e4m3);
    convert(from_bf16, bf16);
    for (std::size_t i = 0; i < size; ++i) {
      EXPECT_EQ(e4m3[i], Float8E4M3::from_float(in[i]));
      EXPECT_EQ(bf16[i], BFloat16::from_float(in[i]));
      expect_same_bits(from_e4m3[i], e4m3[i].to_float());
      expect_same_bits(from_bf16[i], bf16[i].to_float());
    }
  }
}

TEST(Conversions, QuantiseAndDequantiseWithOneScale) {
  for (const std::size_t size : kSizes) {
    for (const float scale : {1.0f, 3.0f, 0.1f}) {
      SCOPED_TRACE(testing::Message() << size << " elements, scale " << scale);
      const std::vector<float> in = sample(size);
      std::vector<BFloat16> in_bf16(size);
      convert(in_bf16, in);
      std::vector<Float8E4M3> codes(size);
      std::vector<Float8E4M3> codes_of_bf16(size);
      std::vector<float> back(size);
      std::vector<BFloat16> back_bf16(size);
      quantize(codes, in, scale);
      quantize(codes_of_bf16, in_bf16, scale);
      dequantize(back, codes, scale);
      dequantize(back_bf16, codes, scale);
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT_EQ(codes[i], quantize(in[i], scale));
        EXPECT_EQ(codes_of_bf16[i], quantize(in_bf16[i].to_float(), scale));
        expect_same_bits(back[i], codes[i].to_float() * scale);
        EXPECT_EQ(back_bf16[i], BFloat16::from_float(codes[i].to_float() * scale));
      }
    }
  }
}

TEST(Conversions, ScaleOfLatentsAloneClipsTheRopePartAndTheCommonScaleDoesNot) {
  std::vector<float> latent(512);
  std::vector<float> rope(64);
  for (std::size_t i = 0; i < latent.size(); ++i) latent[i] = i % 2 == 0 ? 0.08f : -0.03f;
  for (std::size_t i = 0; i < rope.size(); ++i) rope[i] = i % 4 == 0 ? -1.0f : 0.01f;

  const float latent_scale = calibrated_scale(latent);
  EXPECT_EQ(latent_scale, 0.08f / 448.0f);
  EXPECT_EQ(count_saturated(latent, latent_scale), 0);
  EXPECT_EQ(count_saturated(rope, latent_scale), 16);

  const float common_scale = std::max(latent_scale, calibrated_scale(rope));
  EXPECT_EQ(count_saturated(latent, common_scale), 0);
  EXPECT_EQ(count_saturated(rope, common_scale), 0);
}

TEST(Conversions, CalibratedScaleNeverClips) {
  std::mt19937 random(11);
  std::uniform_int_distribution<std::uint32_t> normal_patterns(0x08000000u, 0x7F7FFFFFu);
  for (int i = 0; i < 10'000; ++i) {
    const std::vector<float> in = {-std::bit_cast<float>(normal_patterns(random))};
    const float scale = calibrated_scale(in);
    EXPECT_EQ(count_saturated(in, scale), 0) << std::hexfloat << in[0];
    EXPECT_EQ(quantize(in[0], scale).bits, 0xFE) << std::hexfloat << in[0];
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(calibrated_scale({}), 1.0f);
  EXPECT_EQ(calibrated_scale(std::vector<float>{0.0f, -0.0f}), 1.0f);
  EXPECT_EQ(calibrated_scale(std::vector<float>{0x1p-140f}), 1.0f);
  EXPECT_EQ(calibrated_scale(std::vector<float>{kNan, 2.0f, -kInfinity, -4.0f}), 4.0f / 448.0f);
}

TEST(Conversions, RefuseOtherSizesAndBadScales) {
  const std::vector<float> in(65);
  std::vector<Float8E4M3> out(64);
  EXPECT_THAT([&] { convert(out, in); }, testing::ThrowsMessage<InvalidArgument>(testing::AllOf(
                                             testing::HasSubstr("64"), testing::HasSubstr("65"))));
  out.resize(65);
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT([&] { quantize(out, in, scale); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("scale")));
  }
}

}  // namespace
}  // namespace mladcp
