// Divisions of the kernels, on the host. The proof behind kernels/device/e4m3.cuh: a quotient
// corrected by its remainder is the rounded quotient, for every significand of a bf16 numerator and
// of an fp32 scale. Exponents only shift the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/device/fast_divide.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

TEST(QuotientTest, CorrectedQuotientIsTheRoundedOne) {
  constexpr std::int64_t kBlock = 1 << 13;
  std::atomic<std::int64_t> wrong = 0;
  parallel_for(16, (1 << 23) / kBlock, [&](std::int64_t block) {
    std::int64_t wrong_here = 0;
    for (std::int64_t m = block * kBlock; m < (block + 1) * kBlock; ++m) {
      const auto scale = std::bit_cast<float>(0x3F800000U | static_cast<std::uint32_t>(m));
      const float reciprocal = 1.0F / scale;
      for (std::uint32_t a = 0; a < 128; ++a) {
        const auto x = std::bit_cast<float>(0x3F800000U | (a << 16));
        const float quotient = x * reciprocal;
        const float remainder = std::fma(-quotient, scale, x);
        wrong_here += std::fma(remainder, reciprocal, quotient) != x / scale ? 1 : 0;
      }
    }
    wrong += wrong_here;
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(WideDivisorTest, DividesOnBothSidesOf32Bits) {
  for (const std::int64_t divisor : {1, 2, 3, 7, 48, 64, 127, 128, 65535}) {
    const WideDivisor narrow(divisor, std::int64_t{1} << 31);
    const WideDivisor wide(divisor, (std::int64_t{1} << 31) + 1);
    for (const std::int64_t near : {std::int64_t{0}, divisor, 1000 * divisor,
                                    ((std::int64_t{1} << 31) - 1) / divisor * divisor}) {
      for (std::int64_t x = std::max<std::int64_t>(0, near - 2); x < near + 2; ++x) {
        if (x < std::int64_t{1} << 31) {
          EXPECT_EQ(narrow.quotient(x), x / divisor) << x;
        }
        EXPECT_EQ(wide.quotient(x), x / divisor) << x;
      }
    }
    const std::int64_t far = (std::int64_t{1} << 40) + 5;
    EXPECT_EQ(wide.quotient(far), far / divisor);
  }
}

}  // namespace
}  // namespace mladcp
