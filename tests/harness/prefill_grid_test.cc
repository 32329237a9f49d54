// Chunked prefill on simulated ranks, every stage judged, and conversations over several turns.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/phase_steps.h"
#include "harness/run_scenario.h"

namespace mladcp {
namespace {

const Progress kSilent = [](double, std::string_view) {};

// Heads, rows, ranks and dims all differ; contexts sit on the edges of interleave, page and table.
Scenario small_scenario(std::int64_t n, std::int64_t interleave) {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.phase = Phase::kPrefill;
  ParallelConfig& config = scenario.parallel;
  config.tp = n;
  config.dcp = n;
  config.heads = 3 * n;
  config.interleave = interleave;
  config.page_size = 64;
  config.k_scale = 0.05F;
  const std::int64_t v = n * interleave;
  scenario.context_lens = {0, 1, v - 1, v + 1, 64 * n, 0, 64 * n + 1, 333};
  scenario.new_tokens = {7, 1, 0, 2, 66, 0, 3, 1};
  scenario.workspace_rows = 64 * n;
  scenario.seed = static_cast<std::uint64_t>(n * 100 + interleave);
  scenario.timeout_s = 20.0;
  return scenario;
}

Report expect_all_hold(const Scenario& scenario) {
  Report report = run_scenario(scenario, nullptr, kSilent);
  EXPECT_FALSE(report.checks.empty());
  for (const Check& check : report.checks) {
    EXPECT_NE(check.status, CheckStatus::kFail) << check.message;
  }
  return report;
}

TEST(PrefillGrid, EveryShardingGivesWhatTheUnshardedProblemGives) {
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t interleave : {1, 4, 64}) {
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

TEST(PrefillGrid, TheStageTableHasEveryStage) {
  const Report report = expect_all_hold(small_scenario(4, 2));
  for (const char* stage : {"plan", "write", "gather", "exchange", "reorganise", "causal",
                            "context attention", "merge", "output", "collectives"}) {
    const auto at_stage = [&](const Check& check) {
      return check.stage == stage && check.status == CheckStatus::kPass;
    };
    // The output's LSE, and what merges carry on.
    const int checks = std::string(stage) == "output" || std::string(stage) == "merge" ? 8 : 4;
    EXPECT_EQ(std::count_if(report.checks.begin(), report.checks.end(), at_stage), checks) << stage;
  }
}

TEST(PrefillGrid, GroupsOptionsOfDecodeAndMeansChangeNothing) {
  Scenario scenario = small_scenario(2, 4);
  scenario.parallel.tp = 4;  // two groups
  scenario.parallel.heads = 12;
  scenario.parallel.replicate_query = true;
  scenario.parallel.combine = Combine::kAllToAllPacked;
  scenario.probes = {"all"};
  const Report report = expect_all_hold(scenario);
  EXPECT_TRUE(std::any_of(report.checks.begin(), report.checks.end(),
                          [](const Check& check) { return check.rank == 3; }));
}

TEST(PrefillGrid, StepsWithoutContextOrWithoutNewTokens) {
  Scenario scenario = small_scenario(3, 2);
  scenario.context_lens = {0, 0};
  scenario.new_tokens = {65, 2};
  EXPECT_TRUE(expect_all_hold(scenario).calls.empty());
  scenario.context_lens = {200, 7};
  scenario.new_tokens = {0, 0};
  EXPECT_FALSE(expect_all_hold(scenario).calls.empty());
  scenario.context_lens = {};
  scenario.new_tokens = {};
  expect_all_hold(scenario);
}

TEST(PrefillGrid, AFakeGroupStillShowsOrderShapesAndOwnRows) {
  Scenario scenario = small_scenario(4, 2);
  scenario.collective = "fake";
  expect_all_hold(scenario);
}

TEST(PrefillGrid, EveryProbeHoldsInEveryFormat) {
  for (const DType kv_dtype : {DType::kBF16, DType::kE4M3}) {
    for (const std::int64_t n : {1, 2, 3}) {
      Scenario scenario = small_scenario(n, 4);
      scenario.parallel.kv_dtype = kv_dtype;
      for (const Probe& probe : probes()) {
        SCOPED_TRACE(testing::Message() << probe.name << ", N " << n << ", " << name(kv_dtype));
        scenario.probes = {std::string(probe.name)};
        const Report report = expect_all_hold(scenario);
        const bool judged =
            std::any_of(report.checks.begin(), report.checks.end(),
                        [](const Check& check) { return check.status == CheckStatus::kPass; });
        EXPECT_EQ(judged, probe.name != "scale" || kv_dtype == DType::kE4M3);
      }
    }
  }
}

Scenario small_conversation(std::int64_t n, std::int64_t interleave) {
  Scenario scenario = small_scenario(n, interleave);
  scenario.phase = Phase::kBoth;
  scenario.context_lens = {};
  scenario.seq_lens = {0, 100, 400, 64 * n + 35};
  scenario.new_tokens = {3, 20, 1, 5};
  scenario.q_len = 2;
  return scenario;
}

TEST(Conversation, GrowsByTurnsOverAPrefixThatHitsInWholeColumns) {
  const Scenario scenario = small_conversation(2, 4);  // a column holds 128 positions
  const std::vector<PhaseStep> steps = plan_phase(scenario).steps;
  ASSERT_EQ(steps.size(), 10U);
  const auto request = [&](std::size_t step) {
    const StepRequest of_step = steps[step].scenario.step_requests()[2];
    return std::pair(of_step.length, of_step.q_len);
  };
  // 400 - 4 * 1 - 6 * 2 = 384 tokens: three whole columns.
  EXPECT_EQ(steps[0].scenario.phase, Phase::kPrefill);
  EXPECT_EQ(request(0), std::pair(std::int64_t{385}, std::int64_t{1}));
  EXPECT_EQ(request(1), std::pair(std::int64_t{386}, std::int64_t{1}));
  EXPECT_EQ(steps[2].scenario.phase, Phase::kDecode);
  EXPECT_EQ(request(3), std::pair(std::int64_t{390}, std::int64_t{2}));
  // Turn 2: 384 of 390 tokens hit, 6 come again with the new one.
  EXPECT_EQ(request(4), std::pair(std::int64_t{391}, std::int64_t{7}));
  EXPECT_EQ(request(9).first, 400);
}

TEST(Conversation, EveryStepOfEveryTurnHolds) {
  for (const std::int64_t n : {1, 2, 4}) {
    for (const DType kv_dtype : {DType::kBF16, DType::kE4M3}) {
      SCOPED_TRACE(testing::Message() << "N " << n << ", " << name(kv_dtype));
      Scenario scenario = small_conversation(n, 4);
      scenario.parallel.kv_dtype = kv_dtype;
      const Report report = expect_all_hold(scenario);
      // One sequence over all steps: no call is counted twice for a rank.
      for (const CollectiveRow& row : collective_rows(report.calls)) {
        EXPECT_EQ(row.ranks.size(), static_cast<std::size_t>(n)) << describe(row.call);
      }
    }
  }
}

TEST(Conversation, EveryProbeHoldsInEveryStep) {
  Scenario scenario = small_conversation(2, 4);
  scenario.probes = {"all"};
  expect_all_hold(scenario);
}

}  // namespace
}  // namespace mladcp
