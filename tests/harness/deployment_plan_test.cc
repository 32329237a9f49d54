// mladcp plan, against counting positions one by one and against figures worked out by hand.
#include "harness/deployment_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "reference/oracle.h"
#include "tests/harness/program.h"

namespace mladcp {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Scenario uneven_scenario() {
  Scenario scenario;
  scenario.parallel.tp = scenario.parallel.dcp = 4;
  scenario.parallel.interleave = 4;
  scenario.parallel.page_size = 16;
  scenario.q_len = 3;
  scenario.seq_lens = {3, 130, 1, 64, 0};
  return scenario;
}

TEST(DeploymentPlan, EveryRankKeepsWhatCountingGivesIt) {
  const Scenario scenario = uneven_scenario();
  const DeploymentPlan plan = plan_deployment(scenario);
  ASSERT_EQ(plan.ranks.size(), 4U);
  EXPECT_EQ(plan.rows, 15);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    std::int64_t keys = 0, stored = 0, empty_rows = 0, pages = 0, longest = 0;
    for (const std::int64_t length : scenario.seq_lens) {
      const std::vector<std::int32_t> owner = owners_by_counting(length, 4, 4);
      std::int64_t kept = 0;
      std::set<std::int64_t> used;
      for (std::int64_t p = 0; p < length; ++p) {
        if (owner[static_cast<std::size_t>(p)] != rank) continue;
        used.insert(kept++ / 16);
        if (p >= length - 3) ++stored;
      }
      for (std::int64_t last = length - 3; last < length; ++last) {
        std::int64_t seen = 0;
        for (std::int64_t p = 0; p <= last; ++p) {
          seen += owner[static_cast<std::size_t>(p)] == rank ? 1 : 0;
        }
        empty_rows += seen == 0 ? 1 : 0;
      }
      keys += kept;
      longest = std::max(longest, kept);
      pages += static_cast<std::int64_t>(used.size());
    }
    const RankShare& share = plan.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(share.keys, keys);
    EXPECT_EQ(share.longest, longest);
    EXPECT_EQ(share.stored, stored);
    EXPECT_EQ(share.empty_rows, empty_rows);
    EXPECT_EQ(share.pages, pages);
    EXPECT_EQ(share.cache_bytes, pages * 16 * 576);
  }
}

// DeepSeek-V3, TP 8, DCP 8, one row: 16 heads a rank, 128 gathered.
TEST(DeploymentPlan, BytesOfDeepSeekV3) {
  Scenario scenario;
  scenario.seq_lens = {4096};
  const DeploymentPlan plan = plan_deployment(scenario);
  ASSERT_EQ(plan.calls.size(), 3U);
  EXPECT_EQ(plan.calls[0].wire_bytes, 73728 - 9216);
  EXPECT_EQ(plan.calls[1].wire_bytes, 4096 - 512);
  EXPECT_EQ(plan.calls[2].wire_bytes, 131072 - 16384);
  EXPECT_EQ(plan.weight_bytes, 2 * 16 * 512 * (128 + 128));
  EXPECT_EQ(plan.whole_bytes, 4096 * 576);

  scenario.parallel.project_before_merge = true;
  EXPECT_EQ(plan_deployment(scenario).weight_bytes, 2 * 512 * 128 * (16 + 128));
}

// W_UK of the gathered heads, for the queries of all of them are absorbed here; W_UV of the own.
TEST(DeploymentPlan, AReplicatedQueryNeedsTheGatheredHeadsWeights) {
  Scenario scenario;
  scenario.seq_lens = {4096};
  scenario.parallel.replicate_query = true;
  EXPECT_EQ(plan_deployment(scenario).weight_bytes, 2 * 512 * 128 * (128 + 16));
  EXPECT_EQ(plan_deployment(scenario).calls.size(), 2U);
  scenario.parallel.project_before_merge = true;
  EXPECT_EQ(plan_deployment(scenario).weight_bytes, 2 * 512 * 128 * (128 + 128));
}

// 12,500 chunks of one page each: the screen shows where they begin and end.
TEST(DeploymentPlan, OfManyChunksTheScreenShowsTheEnds) {
  const std::string arguments =
      "plan --phase prefill --page-size 1 --context-lens 100000 --workspace 8 ";
  const Outcome screen = run_program(arguments);
  EXPECT_EQ(screen.status, 0) << screen.output;
  EXPECT_LT(std::count(screen.output.begin(), screen.output.end(), '\n'), 60);
  EXPECT_THAT(screen.output, HasSubstr("\n0                 1            8  0: 0..7\n"));
  EXPECT_THAT(screen.output, HasSubstr("\n... 12488 more; --json has all 12500\n"));
  EXPECT_THAT(screen.output, HasSubstr("  0: 99992..99999\n"));
  const auto json = nlohmann::json::parse(run_program(arguments + "--json -").output);
  EXPECT_EQ(json.at("chunks").size(), 12500U);
  EXPECT_EQ(json.at("collectives").size(), 12500U);
}

TEST(DeploymentPlan, OfManyPiecesALineNamesSome) {
  std::string contexts = "1";
  for (int i = 1; i < 10; ++i) contexts += ",1";
  const Outcome outcome = run_program("plan --phase prefill --context-lens " + contexts);
  EXPECT_THAT(outcome.output, HasSubstr("5: 0..0, and 4 more\n"));
}

TEST(DeploymentPlan, PrefillShowsItsChunks) {
  const Outcome outcome = run_program(
      "plan --phase prefill --heads 8 --tp 4 --dcp 4 --context-lens 65,96 --new-tokens 1,1 "
      "--workspace 128 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json.at("schema"), "mladcp.plan/1");
  ASSERT_EQ(json.at("chunks").size(), 2U);
  EXPECT_EQ(json.at("chunks")[0].at("toks"), 17);  // padded rows of 65 positions on 4 ranks
  EXPECT_EQ(json.at("chunks")[1].at("toks"), 24);
  const nlohmann::json piece = {
      {"request", 1}, {"start", 0}, {"length", 96}, {"seq_start", 0}, {"padded_len", 24}};
  EXPECT_EQ(json.at("chunks")[1], (nlohmann::json{{"toks", 24}, {"pieces", {piece}}}));
  ASSERT_EQ(json.at("collectives").size(), 2U);
  EXPECT_EQ(json.at("collectives")[0].at("ranks").size(), 4U);
}

TEST(DeploymentPlan, ConversationsAreRefused) {
  Scenario scenario;
  scenario.phase = Phase::kBoth;
  EXPECT_THAT([&] { plan_deployment(scenario); },
              ThrowsMessage<InvalidArgument>(HasSubstr("phase is both")));
  EXPECT_EQ(run_program("plan --dcp 3").status, 2);
}

TEST(DeploymentPlan, PrintsWhatARankHolds) {
  const Outcome outcome = run_program("plan --seq-lens 100 --tp 2 --dcp 2 --heads 16");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("mladcp plan: deepseek-v3, 16 heads"));
  EXPECT_THAT(outcome.output, HasSubstr("1               50           50          1"));
  EXPECT_THAT(outcome.output, HasSubstr("reduce_scatter"));
}

}  // namespace
}  // namespace mladcp
