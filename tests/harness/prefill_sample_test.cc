// What of a prefill FP64 judges: everything small, the edges of everything, and a draw of the rest.
#include "harness/prefill_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace mladcp {
namespace {

constexpr MlaDims kDims;  // DeepSeek's

const std::vector<PrefillRequest> kLong = {{9000, 700}, {0, 0}, {30'000, 1}, {100, 2000}};
constexpr std::int64_t kLongRows = 2701;

PrefillSample sample_of(const std::string& audit, std::uint64_t seed = 0,
                        const std::vector<PrefillRequest>& requests = kLong) {
  Scenario scenario;  // 128 heads on 8 ranks
  scenario.audit = audit;
  scenario.seed = seed;
  return sample_prefill(scenario, kDims, requests);
}

TEST(PrefillSample, TakesAllOfASmallStep) {
  const PrefillSample sample = sample_of("auto", 3, {{40, 100}, {0, 0}, {0, 27}});
  EXPECT_EQ(sample.rows.size(), 127U);
  EXPECT_EQ(sample.heads.size(), 16U);
}

TEST(PrefillSample, TakesTheEdgesOfEveryRequestAndADrawBetween) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    const PrefillSample sample = sample_of("auto", seed);
    for (const std::int64_t row : {0, 699, 700, 701, 2700}) {
      EXPECT_TRUE(std::binary_search(sample.rows.begin(), sample.rows.end(), row)) << row;
    }
    EXPECT_TRUE(std::is_sorted(sample.rows.begin(), sample.rows.end()));
    EXPECT_EQ(std::set(sample.rows.begin(), sample.rows.end()).size(), sample.rows.size());
    EXPECT_GE(sample.rows.size(), 128U);
    EXPECT_LE(sample.rows.size(), 140U);
    EXPECT_EQ(sample.heads.size(), 1U);
  }
  EXPECT_NE(sample_of("auto", 1).rows, sample_of("auto", 2).rows);
  EXPECT_EQ(sample_of("auto", 1).rows, sample_of("auto", 1).rows);
}

TEST(PrefillSample, TakesTheHeadsThatAreAskedFor) {
  EXPECT_EQ(sample_of("all").pairs(), kLongRows * 16);
  for (const std::uint64_t seed : {4, 5}) {
    const PrefillSample sample = sample_of("5", seed);
    EXPECT_EQ(std::set(sample.heads.begin(), sample.heads.end()).size(), 5U);
    EXPECT_GE(sample.heads.front(), 0);
    EXPECT_LT(sample.heads.back(), 16);
    EXPECT_LT(sample.rows.size(), 140U);
  }
  EXPECT_EQ(sample_of("99").heads.size(), 16U);
}

}  // namespace
}  // namespace mladcp
