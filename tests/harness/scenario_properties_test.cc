// Random scenarios over every axis: valid ones hold, invalid ones are refused by field. RapidCheck
// shrinks a failing one and prints the command that runs it. RC_PARAMS=max_success=1000000 runs for
// hours.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/error.h"
#include "harness/run_scenario.h"

namespace mladcp {
namespace {

template <typename T>
T pick(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

Scenario arbitrary_scenario() {
  Scenario scenario;
  scenario.model = "tiny";
  ParallelConfig& config = scenario.parallel;
  config.dcp = pick<std::int64_t>({1, 2, 3, 4, 8});
  config.tp = config.dcp * pick<std::int64_t>({1, 1, 2});
  config.heads = config.tp * *rc::gen::inRange<std::int64_t>(1, 4);
  config.interleave = pick<std::int64_t>({1, 2, 4, 16});
  config.page_size = pick<std::int64_t>({16, 64});
  config.kv_dtype = pick({DType::kE4M3, DType::kBF16});
  config.query = config.kv_dtype == DType::kE4M3
                     ? pick({QueryForm::kAuto, QueryForm::kPair, QueryForm::kQuantized})
                     : QueryForm::kAuto;
  config.q_scale = pick({1.0F, 2.0F, 0.1F, 0.03125F});
  config.k_scale = pick({1.0F, 3.0F, 0.1F, 0.25F});
  config.combine =
      pick({Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked});
  config.reduce_dtype = pick({DType::kBF16, DType::kF32});
  config.project_before_merge = *rc::gen::arbitrary<bool>();
  config.replicate_query = *rc::gen::arbitrary<bool>();
  scenario.q_len = *rc::gen::inRange<std::int64_t>(1, 5);
  const std::int64_t span = config.page_size * config.dcp;
  const auto length = rc::gen::oneOf(
      rc::gen::inRange<std::int64_t>(0, 2 * config.sharding().period() + 2),
      rc::gen::inRange<std::int64_t>(span - 1, span + 2), rc::gen::inRange<std::int64_t>(0, 200));
  const auto requests = *rc::gen::inRange<std::size_t>(0, 4);
  scenario.seq_lens = *rc::gen::container<std::vector<std::int64_t>>(requests, length);
  scenario.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  scenario.probes = {
      pick<std::string>({"numeric", "census", "shifted", "sink", "scale", "poison"})};
  return scenario;
}

RC_GTEST_PROP(ScenarioProperties, EveryValidScenarioHolds, ()) {
  const Scenario scenario = arbitrary_scenario();
  const Report report = run_scenario(scenario, nullptr, [](double, std::string_view) {});
  for (const Check& check : report.checks) {
    if (check.status == CheckStatus::kFail) {
      RC_LOG() << command_line(scenario) << "\n" << check.message;
    }
    RC_ASSERT(check.status != CheckStatus::kFail);
  }
}

struct Spoiler {
  std::string field;
  std::function<void(Scenario&)> spoil;
};

RC_GTEST_PROP(ScenarioProperties, EveryInvalidScenarioIsRefusedByField, ()) {
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
      {"seq_lens", [&](Scenario& s) { s.seq_lens.push_back(bad_size - 1); }},
      {"model", [&](Scenario& s) { s.model = "none"; }},
      {"device", [&](Scenario& s) { s.device = "tpu"; }},
      {"collective", [&](Scenario& s) { s.collective = "smoke"; }},
  };
  const Spoiler& spoiler = spoilers[*rc::gen::inRange<std::size_t>(0, spoilers.size())];
  spoiler.spoil(scenario);
  try {
    validate(scenario);
    RC_FAIL("accepted: " + command_line(scenario));
  } catch (const InvalidArgument& error) {
    RC_ASSERT(std::string(error.what()).find(spoiler.field) != std::string::npos);
  }
}

RC_GTEST_PROP(ScenarioProperties, JsonThereAndBackIsTheSameScenario, ()) {
  const std::string json = to_json(arbitrary_scenario());
  RC_ASSERT(to_json(scenario_from_json(json, "copy")) == json);
}

}  // namespace
}  // namespace mladcp
