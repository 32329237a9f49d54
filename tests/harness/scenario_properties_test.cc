// Random scenarios over every axis: valid ones hold, invalid ones are refused by field. RapidCheck
// shrinks a failing one and prints the command that runs it. RC_PARAMS=max_success=1000000 runs for
// hours.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "core/chunk_plan.h"
#include "core/error.h"
#include "harness/run_scenario.h"
#include "harness/scenario_draft.h"
#include "harness/scenario_options.h"
#include "tests/harness/program.h"

namespace mladcp {
namespace {

template <typename T>
T pick(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

ParallelConfig arbitrary_cache_config() {
  ParallelConfig config;
  config.dcp = pick<std::int64_t>({1, 2, 3, 4, 8});
  config.tp = config.dcp * pick<std::int64_t>({1, 1, 2});
  config.heads = config.tp * *rc::gen::inRange<std::int64_t>(1, 4);
  config.interleave = pick<std::int64_t>({1, 2, 4, 16});
  config.page_size = pick<std::int64_t>({16, 64});
  config.kv_dtype = pick({DType::kE4M3, DType::kBF16});
  if (config.kv_dtype == DType::kE4M3) config.k_scale = pick({1.0F, 3.0F, 0.1F, 0.25F});
  return config;
}

// What only a decode step reads.
void choose_decode_config(ParallelConfig& config) {
  config.query = config.kv_dtype == DType::kE4M3
                     ? pick({QueryForm::kAuto, QueryForm::kPair, QueryForm::kQuantized})
                     : QueryForm::kAuto;
  if (config.quantized_query()) config.q_scale = pick({1.0F, 2.0F, 0.1F, 0.03125F});
  config.combine =
      pick({Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked});
  if (config.combine == Combine::kAllGatherReduceScatter) {
    config.reduce_dtype = pick({DType::kBF16, DType::kF32});
  }
  config.project_before_merge = *rc::gen::arbitrary<bool>();
  config.replicate_query = *rc::gen::arbitrary<bool>();
}

// Lengths at and round the edges of pages, periods and padding; some of no meaning.
std::vector<std::int64_t> arbitrary_lengths(const ParallelConfig& config, std::size_t requests) {
  const std::int64_t span = config.page_size * config.dcp;
  const auto length = rc::gen::oneOf(
      rc::gen::inRange<std::int64_t>(0, 2 * config.sharding().period() + 2),
      rc::gen::inRange<std::int64_t>(span - 1, span + 2), rc::gen::inRange<std::int64_t>(0, 200));
  return *rc::gen::container<std::vector<std::int64_t>>(requests, length);
}

Scenario arbitrary_scenario() {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = arbitrary_cache_config();
  const ParallelConfig& config = scenario.parallel;
  // A conversation takes ten steps.
  scenario.phase = pick({Phase::kDecode, Phase::kDecode, Phase::kDecode, Phase::kDecode,
                         Phase::kDecode, Phase::kPrefill, Phase::kPrefill, Phase::kBoth});
  if (scenario.phase != Phase::kPrefill) {
    scenario.q_len = *rc::gen::inRange<std::int64_t>(1, 5);
    choose_decode_config(scenario.parallel);
  }
  scenario.group = pick<std::int64_t>({-1, -1, 0});
  scenario.collective = pick<std::string>({"in_process", "in_process", "in_process", "fake"});
  scenario.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const auto requests = *rc::gen::inRange<std::size_t>(0, 4);
  const std::vector<std::int64_t> lengths = arbitrary_lengths(config, requests);
  scenario.probes = {std::string((*rc::gen::elementOf(probes())).name)};
  if (scenario.phase == Phase::kDecode) {
    scenario.seq_lens = lengths;
    return scenario;
  }
  (scenario.phase == Phase::kPrefill ? scenario.context_lens : scenario.seq_lens) = lengths;
  scenario.new_tokens = *rc::gen::container<std::vector<std::int64_t>>(
      requests, rc::gen::inRange<std::int64_t>(0, 70));
  scenario.workspace_rows =
      ChunkGeometry{config.sharding(), config.page_size, 0}.cut() * pick<std::int64_t>({1, 2, 5});
  return scenario;
}

// How near correct runs come to the bounds, by what was compared.
struct Nearest {
  std::int64_t checks = 0;
  double share = 0.0;  // of the bound, by the worst element
};

TEST(ScenarioProperties, EveryValidScenarioHolds) {
  std::map<std::string, Nearest> nearest;
  const bool all_hold = rc::check([&] {
    const Scenario scenario = arbitrary_scenario();
    RC_LOG() << command_line(scenario) << "\n";
    const Report report = run_scenario(scenario, nullptr, [](double, std::string_view) {});
    for (const Check& check : report.checks) {
      if (check.status == CheckStatus::kFail) RC_FAIL(check.message);
      if (check.bound == 0.0) continue;
      Nearest& of_kind = nearest[check.stage + ": " + check.name];
      ++of_kind.checks;
      of_kind.share = std::fmax(of_kind.share, check.measured / check.bound);
    }
  });
  EXPECT_TRUE(all_hold);
  for (const auto& [kind, found] : nearest) {
    std::printf("%8lld  %.3f of the bound  %s\n", static_cast<long long>(found.checks), found.share,
                kind.c_str());
  }
}

// What the program makes of a command line, up to where it would run.
Scenario resolved(const std::string& line) {
  CLI::App app;
  const ScenarioOptions options(*app.add_subcommand("run"));
  app.parse(line, /*program_name_included=*/true);
  return options.resolve();
}

// What a failure prints is what failed.
RC_GTEST_PROP(ScenarioProperties, CommandLineIsTheSameScenario, ()) {
  const Scenario scenario = arbitrary_scenario();
  RC_ASSERT(to_json(resolved(command_line(scenario))) == to_json(scenario));
}

struct Spoiler {
  std::string field;
  std::function<void(Scenario&)> spoil;
};

struct Spoiled {
  Scenario scenario;
  std::string field;  // to blame
};

Spoiled arbitrary_invalid_scenario() {
  Scenario scenario = arbitrary_scenario();
  const auto bad_size = *rc::gen::inRange<std::int64_t>(-3, 1);
  const auto bad_scale = pick({0.0F, -1.0F, HUGE_VALF, std::nanf("")});
  const std::vector<Spoiler> spoilers = {
      {"heads", [&](Scenario& s) { s.parallel.heads = bad_size; }},
      {"heads", [&](Scenario& s) { s.parallel.tp = s.parallel.dcp * 5, s.parallel.heads = 7; }},
      {"tp", [&](Scenario& s) { s.parallel.tp = bad_size; }},
      {"tp", [&](Scenario& s) { s.parallel.tp = 7, s.parallel.dcp = 2; }},
      {"dcp", [&](Scenario& s) { s.parallel.dcp = bad_size; }},
      {"interleave", [&](Scenario& s) { s.parallel.interleave = bad_size; }},
      {"page_size", [&](Scenario& s) { s.parallel.page_size = bad_size; }},
      {"page_size", [&](Scenario& s) { s.parallel.interleave = 5; }},
      {"q_scale", [&](Scenario& s) { s.parallel.q_scale = bad_scale; }},
      {"k_scale", [&](Scenario& s) { s.parallel.k_scale = bad_scale; }},
      {"kv_dtype", [&](Scenario& s) { s.parallel.kv_dtype = DType::kI32; }},
      {"query",
       [&](Scenario& s) {
         s.parallel.kv_dtype = DType::kBF16, s.parallel.query = QueryForm::kQuantized;
       }},
      {"reduce_dtype", [&](Scenario& s) { s.parallel.reduce_dtype = DType::kE4M3; }},
      {"group", [&](Scenario& s) { s.group = s.parallel.tp; }},
      {"q_len", [&](Scenario& s) { s.q_len = bad_size; }},
      {"_lens[",
       [&](Scenario& s) {
         auto& lengths = s.phase == Phase::kPrefill ? s.context_lens : s.seq_lens;
         lengths.push_back(bad_size - 1);
         if (s.phase != Phase::kDecode) s.new_tokens.resize(lengths.size(), 1);
       }},
      {"reduce_dtype",
       [&](Scenario& s) {
         s.parallel.combine = Combine::kAllToAll, s.parallel.reduce_dtype = DType::kF32;
       }},
      {"timeout", [&](Scenario& s) { s.collective = "fake", s.timeout_s = 3.0; }},
      {"means nothing in",
       [&](Scenario& s) {
         if (s.phase == Phase::kPrefill) s.q_len = 2;
         if (s.phase != Phase::kPrefill) s.phase = Phase::kDecode, s.audit = "2";
       }},
      {"means nothing in prefill",
       [&](Scenario& s) {
         s.phase = Phase::kPrefill, s.context_lens = std::exchange(s.seq_lens, {}), s.q_len = 1;
         s.parallel = arbitrary_cache_config(), s.parallel.replicate_query = true;
       }},
      {"k_scale means nothing in bf16",
       [&](Scenario& s) {
         s.parallel.kv_dtype = DType::kBF16, s.parallel.k_scale = 3.0F;
         s.parallel.query = QueryForm::kAuto, s.parallel.q_scale = 1.0F;
       }},
      {"probe", [&](Scenario& s) { s.probes = {"sonar"}; }},
      {"model", [&](Scenario& s) { s.model = "none"; }},
      {"device", [&](Scenario& s) { s.device = "tpu"; }},
      {"collective", [&](Scenario& s) { s.collective = "smoke"; }},
  };
  const Spoiler& spoiler = spoilers[*rc::gen::inRange<std::size_t>(0, spoilers.size())];
  spoiler.spoil(scenario);
  return {scenario, spoiler.field};
}

TEST(ScenarioProperties, EveryInvalidScenarioIsRefusedByField) {
  int processes = 200;  // a process a scenario would take minutes
  EXPECT_TRUE(rc::check([&] {
    const Spoiled spoiled = arbitrary_invalid_scenario();
    const std::string line = command_line(spoiled.scenario);
    RC_LOG() << line << "\n";
    std::string message;
    try {
      run_scenario(resolved(line), nullptr, [](double, std::string_view) {});
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    RC_ASSERT(message.find(spoiled.field) != std::string::npos);
    if (--processes < 0) return;
    const Outcome outcome = run_program(line.substr(line.find(' ')));
    RC_LOG() << outcome.output;
    RC_ASSERT(outcome.status == 2);
    RC_ASSERT(outcome.output.find(message) != std::string::npos);
  }));
}

RC_GTEST_PROP(ScenarioProperties, JsonThereAndBackIsTheSameScenario, ()) {
  const std::string json = to_json(arbitrary_scenario());
  ScenarioDraft draft;
  read_json(draft, json, "copy");
  RC_ASSERT(to_json(complete(draft)) == json);
}

}  // namespace
}  // namespace mladcp
