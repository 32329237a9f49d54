// mladcp run: simulate a scenario and check every stage.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "harness/exit_status.h"
#include "harness/host_memory.h"
#include "harness/report_output.h"
#include "harness/run_hints.h"
#include "harness/run_scenario.h"
#include "harness/scenario_options.h"
#include "harness/verbs.h"

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

struct RunVerb {
  explicit RunVerb(CLI::App& command) : scenario(command) { add_json_option(command, json); }

  int run() const {
    expect_writable("--json", json, scenario.input_files());
    const Scenario resolved = scenario.resolve();
    expect_host_memory(resolved);
    hint_before_run(resolved);
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
