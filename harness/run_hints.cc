#include "harness/run_hints.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "collectives/launch_environment.h"
#include "harness/phase_steps.h"
#include "harness/text_values.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

// What mpirun started runs once each, all of it, unless it is told to meet.
void hint_at_mpi(const Scenario& scenario) {
  const char* processes = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (processes == nullptr || std::string_view(processes) == "1") return;
  if (scenario.collective == "mpi" || scenario.collective == "nccl") return;
  fmt::print(stderr,
             "mladcp: each of {} processes runs all ranks; with --collective mpi each is one\n",
             printable(processes));
}

// Core-seconds by channel of a key row, as two cores of a server took them: enough to tell minutes
// from seconds. A prefill expands its context for every head, once for all new tokens.
constexpr double kPerKey = 6e-8;
constexpr double kPerDecodedPair = 5e-10;  // of a query row's head and a key
constexpr double kPerPrefilledPair = 1e-11;
constexpr double kPerExpandedKey = 2e-8;

double minutes_on_cpu(const Scenario& scenario) {
  const auto groups = static_cast<double>(scenario.parallel.groups());
  const double heads =
      static_cast<double>(scenario.parallel.heads) / (scenario.group < 0 ? 1.0 : groups);
  double channel_seconds = 0;
  for (const PhaseStep& step : plan_phase(scenario).steps) {
    const bool decodes = step.scenario.phase == Phase::kDecode;
    const double pair = decodes ? kPerDecodedPair : kPerPrefilledPair;
    for (const StepRequest& request : step.scenario.step_requests()) {
      const double rows = heads * static_cast<double>(request.q_len);
      channel_seconds += static_cast<double>(request.length) *
                         (kPerKey + pair * rows + (decodes ? 0.0 : kPerExpandedKey * heads));
    }
  }
  const auto channels = static_cast<double>(scenario.model_config().dims.row());
  return channels * channel_seconds / 60.0 / threads_per_rank(1);
}

// A log would show nothing until the end.
void hint_at_duration(const Scenario& scenario) {
  if (scenario.device != "cpu") return;
  const double minutes = minutes_on_cpu(scenario);
  if (minutes < 2.0) return;
  fmt::print(stderr,
             "mladcp: this takes minutes, perhaps {:.0f}; fewer --heads, one --group or shorter "
             "requests take less\n",
             minutes);
}

}  // namespace

void hint_before_run(const Scenario& scenario) {
  if (launched_process(std::getenv).rank != 0) return;
  hint_at_mpi(scenario);
  hint_at_duration(scenario);
}

}  // namespace mladcp
