// Whole decode steps on simulated ranks, every stage judged, over the grid of what a deployment may
// choose: ranks, interleave, cache and query format, scales, combine, ragged and empty shards.
#include <gtest/gtest.h>

#include <string>

#include "harness/run_scenario.h"

namespace mladcp {
namespace {

// Heads, rows, ranks and dims all differ; lengths sit on every edge of interleave, page and table.
Scenario small_scenario(std::int64_t n, std::int64_t interleave) {
  Scenario scenario;
  scenario.model = "tiny";
  ParallelConfig& config = scenario.parallel;
  config.tp = n;
  config.dcp = n;
  config.heads = 5 * n;
  config.interleave = interleave;
  config.page_size = 64;
  const std::int64_t v = n * interleave;
  scenario.seq_lens = {0, 1, n - 1, n + 1, v - 1, v, v + 1, 64 * n - 1, 64 * n, 64 * n + 1, 333};
  scenario.seed = static_cast<std::uint64_t>(n * 100 + interleave);
  scenario.timeout_s = 20.0;
  return scenario;
}

const Progress kSilent = [](double, std::string_view) {};

void expect_all_hold(const Scenario& scenario) {
  const Report report = run_scenario(scenario, nullptr, kSilent);
  EXPECT_FALSE(report.checks.empty());
  for (const Check& check : report.checks) {
    EXPECT_NE(check.status, CheckStatus::kFail) << check.message;
  }
}

TEST(DecodeGrid, EveryShardingGivesWhatTheUnshardedProblemGives) {
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t interleave : {1, 2, 4, 16, 64}) {
      for (const DType kv_dtype : {DType::kBF16, DType::kE4M3}) {
        SCOPED_TRACE(testing::Message()
                     << "N " << n << ", I " << interleave << ", " << name(kv_dtype));
        Scenario scenario = small_scenario(n, interleave);
        scenario.parallel.kv_dtype = kv_dtype;
        expect_all_hold(scenario);
      }
    }
  }
}

TEST(DecodeGrid, EveryScaleReachesLogitsAndOutputsOnce) {
  const float scales[][2] = {{1.0F, 1.0F}, {2.0F, 3.0F}, {0.1F, 0.1F}};
  for (const auto& [q_scale, k_scale] : scales) {
    for (const QueryForm query : {QueryForm::kPair, QueryForm::kQuantized}) {
      SCOPED_TRACE(testing::Message()
                   << "q_scale " << q_scale << ", k_scale " << k_scale << ", " << name(query));
      Scenario scenario = small_scenario(3, 4);
      scenario.parallel.q_scale = q_scale;
      scenario.parallel.k_scale = k_scale;
      scenario.parallel.query = query;
      expect_all_hold(scenario);
    }
  }
}

TEST(DecodeGrid, EveryCombineAndOptionAgrees) {
  for (const Combine combine :
       {Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked}) {
    for (const bool project_first : {false, true}) {
      for (const bool replicate : {false, true}) {
        for (const DType reduce : {DType::kBF16, DType::kF32}) {
          SCOPED_TRACE(testing::Message()
                       << name(combine) << (project_first ? ", project before merge" : "")
                       << (replicate ? ", replicated query" : "") << ", reduce " << name(reduce));
          Scenario scenario = small_scenario(4, 2);
          scenario.parallel.combine = combine;
          scenario.parallel.project_before_merge = project_first;
          scenario.parallel.replicate_query = replicate;
          scenario.parallel.reduce_dtype = reduce;
          scenario.probes = {"numeric", "census"};
          expect_all_hold(scenario);
        }
      }
    }
  }
}

// Fault 6 and 15: rows of one request see different lengths; requests shorter than q_len are
// padding.
TEST(DecodeGrid, SeveralQueryRowsARequest) {
  for (const std::int64_t q_len : {2, 3, 4}) {
    SCOPED_TRACE(q_len);
    Scenario scenario = small_scenario(2, 4);
    scenario.seq_lens = {10, 17, 1, 0, 64, 257};
    scenario.q_len = q_len;
    scenario.probes = {"numeric", "census"};
    expect_all_hold(scenario);
  }
}

TEST(DecodeGrid, SeveralGroupsWhenTensorParallelismIsWider) {
  Scenario scenario = small_scenario(2, 16);
  scenario.parallel.tp = 6;
  scenario.parallel.heads = 18;
  expect_all_hold(scenario);
}

TEST(DecodeGrid, NoRequestsAtAll) {
  Scenario scenario = small_scenario(4, 1);
  scenario.seq_lens = {};
  expect_all_hold(scenario);
}

TEST(DecodeGrid, TheSameScenarioTwiceGivesTheSameBits) {
  const Scenario scenario = small_scenario(4, 4);
  const Report first = run_scenario(scenario, nullptr, kSilent);
  const Report second = run_scenario(scenario, nullptr, kSilent);
  ASSERT_EQ(first.checks.size(), second.checks.size());
  for (std::size_t i = 0; i < first.checks.size(); ++i) {
    EXPECT_EQ(first.checks[i].measured, second.checks[i].measured) << first.checks[i].name;
  }
}

}  // namespace
}  // namespace mladcp
