#include "harness/fault.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/bfloat16.h"
#include "core/error.h"
#include "harness/backend.h"
#include "harness/fault_variations.h"
#include "harness/phase_steps.h"
#include "harness/run_scenario.h"
#include "harness/stage_tensors.h"

namespace mladcp {
namespace {

const Progress kSilent = [](double, std::string_view) {};

// What many test suites do: random data, the final output against a trusted one, |a - b| <= 0.05 +
// 0.05 |b|. A run that refuses counts as caught.
bool loose_tolerance_catches(const Fault& fault, Backend& backend) {
  constexpr float kTolerance = 0.05F;
  const Scenario& scenario = fault.scenario;
  const PhasePlan plan = plan_phase(scenario);
  const DecodeProblem problem = random_problem(plan, scenario, 0.0F);
  const PagedLayout layout = plan.layout(scenario.parallel, 0);
  const Scenario unhurried = clean_scenario(fault);
  const auto clean = run_stages({unhurried, backend, nullptr, kSilent}, unhurried, problem, layout);
  std::vector<RankStages> faulty;
  try {
    faulty =
        run_stages({scenario, backend, fault.variation.get(), kSilent}, scenario, problem, layout);
  } catch (const Error&) {
    return true;
  }
  for (std::size_t r = 0; r < clean.size(); ++r) {
    const auto* a = faulty[r].output.as<const BFloat16>();
    const auto* b = clean[r].output.as<const BFloat16>();
    for (std::int64_t i = 0; i < clean[r].output.view().elements(); ++i) {
      const float wanted = b[i].to_float();
      const float error = std::fabs(a[i].to_float() - wanted);
      if (!(error <= kTolerance + kTolerance * std::fabs(wanted))) return true;
    }
  }
  return false;
}

}  // namespace

Scenario fault_scenario() {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = {.heads = 12, .tp = 4, .dcp = 4, .interleave = 2, .page_size = 16};
  // Empty, shorter than a period (an empty shard on some ranks), page edges, a long one last.
  scenario.seq_lens = {0, 3, 64, 65, 127, 300};
  scenario.seed = 11;
  scenario.timeout_s = 20.0;
  return scenario;
}

Scenario prefill_fault_scenario() {
  Scenario scenario = fault_scenario();
  scenario.phase = Phase::kPrefill;
  scenario.parallel.k_scale = 0.1F;
  scenario.context_lens = std::exchange(scenario.seq_lens, {});
  scenario.new_tokens = {5, 1, 3, 0, 2, 4};
  scenario.workspace_rows = 128;
  return scenario;
}

Fault op_fault(std::string name, std::string imitates, std::string stage, int rank,
               OpFunctions functions, const Scenario& scenario) {
  return {std::move(name),
          std::move(imitates),
          std::move(stage),
          rank,
          scenario,
          {"numeric"},
          std::make_shared<OpFault>(rank, std::move(functions))};
}

Scenario clean_scenario(const Fault& fault) {
  Scenario scenario = fault.scenario;
  scenario.probes = fault.probes;
  scenario.timeout_s = std::max(scenario.timeout_s, 60.0);
  return scenario;
}

std::vector<Fault> fault_catalogue() {
  std::vector<Fault> all;
  for (auto* room : {plan_faults, query_faults, cache_faults, attention_faults, combine_faults,
                     collective_faults, prefill_plan_faults, prefill_movement_faults,
                     prefill_attention_faults}) {
    for (Fault& fault : room()) all.push_back(std::move(fault));
  }
  return all;
}

Scenario scenario_on(Scenario scenario, std::string_view device) {
  scenario.device = device;
  if (device == "cuda" && scenario.model == "tiny") scenario.model = "deepseek-v2-lite";
  return scenario;
}

FaultFinding try_fault(const Fault& fault) {
  const Scenario& scenario = fault.scenario;
  return try_fault(fault,
                   *make_backend(scenario.device, scenario.collective,
                                 static_cast<int>(scenario.parallel.dcp), scenario.timeout_s));
}

FaultFinding try_fault(const Fault& fault, Backend& backend) {
  FaultFinding finding;
  finding.name = fault.name;
  finding.imitates = fault.imitates;
  finding.stage_expected = fault.stage;
  Scenario scenario = fault.scenario;
  for (const std::string& probe : fault.probes) {
    scenario.probes = {probe};
    try {
      const Report report = run_scenario(scenario, fault.variation.get(), kSilent, backend);
      const auto failed =
          std::find_if(report.checks.begin(), report.checks.end(),
                       [](const Check& check) { return check.status == CheckStatus::kFail; });
      if (failed == report.checks.end()) continue;
      finding.caught_by = probe;
      finding.stage = failed->stage;
      finding.rank = failed->rank;
      finding.message = failed->message;
      finding.localised = failed->stage == fault.stage &&
                          (fault.rank == Fault::kEveryRank || failed->rank == fault.rank);
    } catch (const Error& error) {
      // The group itself noticed: ranks out of step, or an operation that refused its input.
      finding.caught_by = "error";
      finding.stage = "collectives";
      finding.message = error.what();
      finding.localised = fault.stage == "collectives";
    }
    break;
  }
  finding.loose_tolerance_caught = loose_tolerance_catches(fault, backend);
  return finding;
}

}  // namespace mladcp
