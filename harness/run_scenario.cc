#include "harness/run_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/support_table.h"
#include "harness/backend.h"

namespace mladcp {
namespace {

// The order in which data passes the stages: the first failure in this order is the one to look at.
std::ptrdiff_t stage_order(const std::string& stage) {
  static constexpr const char* kOrder[] = {"plan",
                                           "write",
                                           "absorb",
                                           "quantise",
                                           "query",
                                           "schedule",
                                           "gather",
                                           "exchange",
                                           "reorganise",
                                           "causal",
                                           "context attention",
                                           "attention",
                                           "mask",
                                           "lse",
                                           "correct",
                                           "merge",
                                           "combined",
                                           "projected",
                                           "output",
                                           "collectives",
                                           "poison"};
  return std::find(std::begin(kOrder), std::end(kOrder), stage) - std::begin(kOrder);
}

std::vector<const Probe*> chosen_probes(const Scenario& scenario) {
  std::vector<const Probe*> chosen;
  for (const std::string& name : scenario.probes) {
    if (name != "all") {
      chosen.push_back(&find_probe(name));
      continue;
    }
    for (const Probe& probe : probes()) chosen.push_back(&probe);
  }
  return chosen;
}

// What no machine offers is bad input, not a machine that lacks something.
void expect_offered(const Scenario& scenario) {
  try {
    expect_supported(scenario.device, scenario.parallel, scenario.model_config().dims,
                     scenario.q_len);
  } catch (const Unsupported& error) {
    throw InvalidArgument("model = '" + scenario.model + "', device " + error.what());
  }
}

// A process that runs other probes would answer questions that nobody asked. All judge the same
// scenarios, so that none goes on while another refuses.
void expect_same_scenario(Backend& backend, const Scenario& scenario) {
  const std::vector<std::string> all = backend.gather_everywhere(to_json(scenario));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    // In the order of visit_keys: what others follow from, model and phase, comes before them.
    const auto first = nlohmann::ordered_json::parse(all[0]);
    const auto other = nlohmann::ordered_json::parse(all[rank]);
    for (const auto& [key, value] : first.items()) {
      if (other.at(key) == value) continue;
      throw InvalidArgument(fmt::format("{} = {} on process 0, {} on process {}: give all the same",
                                        key, value.dump(), other.at(key).dump(), rank));
    }
  }
  const auto processes = static_cast<std::int64_t>(all.size());
  if (scenario.collective != "mpi" || processes == scenario.parallel.dcp) return;
  throw InvalidArgument(
      fmt::format("collective mpi: dcp = {} but {} processes run; start with mpirun -n {}",
                  scenario.parallel.dcp, processes, scenario.parallel.dcp));
}

}  // namespace

Report run_scenario(const Scenario& scenario, const Variation* variation,
                    const Progress& progress) {
  chosen_probes(scenario);
  expect_offered(scenario);
  const std::unique_ptr<Backend> backend =
      make_backend(scenario.device, scenario.collective, static_cast<int>(scenario.parallel.dcp),
                   scenario.timeout_s);
  return run_scenario(scenario, variation, progress, *backend);
}

Report run_scenario(const Scenario& scenario, const Variation* variation, const Progress& progress,
                    Backend& backend) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<const Probe*> chosen = chosen_probes(scenario);
  expect_offered(scenario);
  expect_same_scenario(backend, scenario);
  Report report;
  report.verb = "run";
  report.scenario = scenario;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const double share = 1.0 / static_cast<double>(chosen.size());
    const Progress part = [&](double done, std::string_view next) {
      progress((static_cast<double>(i) + done) * share, next);
    };
    ProbeOutcome outcome = chosen[i]->run({scenario, backend, variation, part});
    for (Check& check : outcome.checks) check.probe = chosen[i]->name;
    std::stable_sort(
        outcome.checks.begin(), outcome.checks.end(),
        [](const Check& a, const Check& b) { return stage_order(a.stage) < stage_order(b.stage); });
    std::move(outcome.checks.begin(), outcome.checks.end(), std::back_inserter(report.checks));
    if (report.calls.empty()) report.calls = std::move(outcome.calls);
    report.step_seconds = std::max(report.step_seconds, outcome.step_seconds);
  }
  report.silent = backend.link() != nullptr && backend.link()->rank_in_group() != 0;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  report.seconds = seconds.count();
  return report;
}

}  // namespace mladcp
