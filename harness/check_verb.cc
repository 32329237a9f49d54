// mladcp check: judge attention calls that an engine or a kernel dumped.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness/dump_checks.h"
#include "harness/exit_status.h"
#include "harness/options.h"
#include "harness/report.h"
#include "harness/report_output.h"
#include "harness/verbs.h"

namespace mladcp {
namespace {

struct CheckVerb {
  explicit CheckVerb(CLI::App& command) {
    add_values(command, "files", report.files,
               "safetensors of one call each; under DCP one file a rank, in rank order");
    add_value(command, "--numerics", report.numerics,
              "how the kernel rounds (docs/numerics.md); sm90_fp8 for an e4m3 query, "
              "else cuda_generic_fp8 or cuda_generic_bf16 by the cache");
    add_json_option(command, json);
  }

  int run() {
    expect_writable("--json", json, report.files);
    const auto begin = std::chrono::steady_clock::now();
    const auto threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    report.checks = judge_dumps(report.files, report.numerics, threads);
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    give_report(
        json, [&] { print(report, stdout); }, [&] { return to_json(report); });
    return all_hold(report.checks) ? kExitPass : kExitCheckFailed;
  }

  DumpReport report;
  std::string json;
};

}  // namespace

void add_check_verb(CLI::App& program, int& status) {
  CLI::App* command = program.add_subcommand(
      "check", "judge attention calls that an engine or a kernel dumped, against FP64");
  const auto verb = std::make_shared<CheckVerb>(*command);
  command->callback([verb, &status] { status = verb->run(); });
}

}  // namespace mladcp
