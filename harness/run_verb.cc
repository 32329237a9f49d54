// mladcp run: simulate a scenario and check every stage.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/launch_environment.h"
#include "harness/exit_status.h"
#include "harness/phase_steps.h"
#include "harness/report_output.h"
#include "harness/run_scenario.h"
#include "harness/scenario_options.h"
#include "harness/text_values.h"
#include "harness/verbs.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

// A bar on a terminal's standard error; silent elsewhere, so that logs and pipes stay clean.
class ProgressBar {
 public:
  void operator()(double done, std::string_view next) const {
    if (!terminal_) return;
    const auto filled = static_cast<std::size_t>(done * kWidth);
    fmt::print(stderr, "\r[{}{}] {:3.0f} % {:<32}", std::string(filled, '='),
               std::string(kWidth - filled, ' '), 100.0 * done, next);
    std::fflush(stderr);
  }
  void clear() const {
    if (terminal_) fmt::print(stderr, "\r{:<78}\r", "");
  }

 private:
  static constexpr std::size_t kWidth = 30;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
};

// What mpirun started runs once each, all of it, unless it is told to meet.
void hint_at_mpi(const Scenario& scenario) {
  const char* processes = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (processes == nullptr || std::string_view(processes) == "1") return;
  if (scenario.collective == "mpi" || scenario.collective == "nccl") return;
  if (launched_rank(std::getenv) != 0) return;
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
  if (scenario.device != "cpu" || launched_rank(std::getenv) != 0) return;
  const double minutes = minutes_on_cpu(scenario);
  if (minutes < 2.0) return;
  fmt::print(stderr,
             "mladcp: this takes minutes, perhaps {:.0f}; fewer --heads, one --group or shorter "
             "requests take less\n",
             minutes);
}

struct RunVerb {
  explicit RunVerb(CLI::App& command) : scenario(command) { add_json_option(command, json); }

  int run() const {
    expect_writable("--json", json, scenario.input_files());
    const Scenario resolved = scenario.resolve();
    hint_at_mpi(resolved);
    hint_at_duration(resolved);
    ProgressBar bar;
    const Report report = run_scenario(resolved, nullptr, std::ref(bar));
    bar.clear();
    if (report.silent) return kExitPass;
    give_report(
        json, [&] { print(report, stdout); }, [&] { return to_json(report); });
    return all_hold(report.checks) ? kExitPass : kExitCheckFailed;
  }

  ScenarioOptions scenario;
  std::string json;
};

}  // namespace

void add_run_verb(CLI::App& program, int& status) {
  CLI::App* command =
      program.add_subcommand("run", "simulate a scenario on every rank and check each stage");
  const auto verb = std::make_shared<RunVerb>(*command);
  command->callback([verb, &status] { status = verb->run(); });
}

}  // namespace mladcp
