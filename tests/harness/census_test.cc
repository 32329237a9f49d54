// The census proved on itself: fed by exact outputs of a small model of attention, faulted in every
// way it must see.
#include "harness/census.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace mladcp {
namespace {

constexpr std::int64_t kWidth = 512;
constexpr double kFullMatch = 400.0;

CensusPass a_pass() {
  return {.width = kWidth, .first_window = 0, .windows = 128, .seed = 7, .full_match = kFullMatch};
}

// What attention gives for a row that audits `window`, when the key at position p is attended
// times(p) times and channel c of key p holds content(p, c).
struct Attended {
  std::vector<double> out;
  double lse = -INFINITY;
};
Attended attend(std::int64_t window, const std::function<double(std::int64_t)>& times) {
  const CensusPass pass = a_pass();
  Attended result;
  result.out.assign(kWidth, 0.0);
  double mass = 0.0;
  for (std::int64_t c = 0; c < kWidth; ++c) {
    const std::int64_t p = window * kWidth + c;
    mass += times(p);
    result.out[static_cast<std::size_t>(c)] = census_sign(pass.seed, 0, p) * times(p);
  }
  for (double& value : result.out) value = mass == 0.0 ? 0.0 : value / mass;
  if (mass > 0.0) result.lse = kFullMatch + std::log(mass);
  return result;
}

std::vector<CensusMiss> census_of(std::int64_t window, std::int64_t visible,
                                  const std::function<double(std::int64_t)>& times) {
  const Attended attended = attend(window, times);
  return take_census(a_pass(), 0, window, attended.out, attended.lse, 1.0,
                     [&](std::int64_t p) { return p < visible; });
}

TEST(Census, CleanAttentionHasNoMiss) {
  for (const std::int64_t visible : {1, 511, 512, 1000, 1024}) {
    const auto times = [&](std::int64_t p) { return p < visible ? 1.0 : 0.0; };
    for (std::int64_t window = 0; window * kWidth < visible; ++window) {
      EXPECT_TRUE(census_of(window, visible, times).empty()) << visible << " " << window;
    }
  }
}

TEST(Census, NamesTheMissingKey) {
  const auto misses = census_of(1, 1024, [](std::int64_t p) { return p == 777 ? 0.0 : 1.0; });
  ASSERT_EQ(misses.size(), 1U);
  EXPECT_EQ(misses[0].position, 777);
  EXPECT_TRUE(misses[0].expected);
}

TEST(Census, NamesTheDoubledKeyAndTheKeyThatShouldNotBeSeen) {
  const auto doubled = census_of(0, 512, [](std::int64_t p) { return p == 3 ? 2.0 : 1.0; });
  ASSERT_EQ(doubled.size(), 1U);
  EXPECT_EQ(doubled[0].position, 3);
  const auto unseen = census_of(0, 100, [](std::int64_t p) { return p <= 100 ? 1.0 : 0.0; });
  ASSERT_EQ(unseen.size(), 1U);
  EXPECT_EQ(unseen[0].position, 100);
  EXPECT_FALSE(unseen[0].expected);
}

TEST(Census, SeesThatAllKeysAreDoubledThroughTheLse) {
  EXPECT_EQ(census_of(0, 512, [](std::int64_t) { return 2.0; }).size(), 512U);
}

TEST(Census, SeesAnotherWindowsContentThroughTheSigns) {
  const Attended other = attend(5, [](std::int64_t) { return 1.0; });
  const auto misses =
      take_census(a_pass(), 0, 2, other.out, other.lse, 1.0, [](std::int64_t) { return true; });
  EXPECT_GT(misses.size(), 150U);  // half of the 512 signs differ
}

TEST(Census, EmptyAndNaNResultsMissEveryKey) {
  const auto nothing = [](std::int64_t) { return 0.0; };
  EXPECT_EQ(census_of(0, 512, nothing).size(), 512U);
  const auto misses = take_census(a_pass(), 0, 0, std::vector<double>(kWidth, NAN), kFullMatch, 1.0,
                                  [](std::int64_t) { return true; });
  EXPECT_EQ(misses.size(), 512U);
}

TEST(Census, WindowCodesAreDistinct) {
  const CensusCode code(64);
  ASSERT_EQ(code.count(), 9261);
  for (std::int64_t g = 0; g < code.count(); ++g) {
    std::int64_t rebuilt = 0;
    std::int64_t place = 1;
    for (int digit = 0; digit < 3; ++digit, place *= code.base) {
      const std::int64_t channel = code.channel(g, digit);
      ASSERT_EQ(channel / code.base, digit);
      rebuilt += channel % code.base * place;
    }
    ASSERT_EQ(rebuilt, g);
  }
}

TEST(Census, PassesAuditEveryWindowOfEveryRequestOnce) {
  Scenario scenario;
  scenario.seq_lens = {70000, 1, 512 * 128, 512 * 128 + 1};
  const auto passes = census_passes(census_scenario(scenario), kWidth, scenario.parallel.heads);
  EXPECT_EQ(passes.size(), 2U);
  for (const std::int64_t length : scenario.seq_lens) {
    std::vector<int> audited(static_cast<std::size_t>((length + kWidth - 1) / kWidth), 0);
    for (const CensusPass& pass : passes) {
      for (std::int64_t head = 0; head < scenario.parallel.heads; ++head) {
        const std::int64_t window = pass.audited_window(head, length);
        if (window >= 0) ++audited.at(static_cast<std::size_t>(window));
      }
    }
    for (const int times : audited) EXPECT_GE(times, 1);
  }
}

}  // namespace
}  // namespace mladcp
