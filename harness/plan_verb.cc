// mladcp plan: what a scenario asks of every rank, without running it.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "harness/deployment_plan.h"
#include "harness/exit_status.h"
#include "harness/report_output.h"
#include "harness/scenario_options.h"
#include "harness/verbs.h"

namespace mladcp {
namespace {

struct PlanVerb {
  explicit PlanVerb(CLI::App& command) : scenario(command) { add_json_option(command, json); }

  int run() const {
    expect_writable("--json", json, scenario.input_files());
    const DeploymentPlan plan = plan_deployment(scenario.resolve());
    give_report(
        json, [&] { print(plan, stdout); }, [&] { return to_json(plan); });
    return kExitPass;
  }

  ScenarioOptions scenario;
  std::string json;
};

}  // namespace

void add_plan_verb(CLI::App& program, int& status) {
  CLI::App* command = program.add_subcommand(
      "plan", "keys, memory, collectives and chunks of every rank, without running anything");
  const auto verb = std::make_shared<PlanVerb>(*command);
  command->callback([verb, &status] { status = verb->run(); });
}

}  // namespace mladcp
