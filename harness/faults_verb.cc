// mladcp faults: inject every known fault and see it named.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "harness/exit_status.h"
#include "harness/fault.h"
#include "harness/options.h"
#include "harness/report_output.h"
#include "harness/run_scenario.h"
#include "harness/sensitivity.h"
#include "harness/verbs.h"

namespace mladcp {
namespace {

struct Kill {
  std::vector<FaultFinding> findings;
  std::vector<Sensitivity> sensitivities;   // with --smallest
  std::vector<std::string> clean_failures;  // messages of clean runs that did not pass
  double seconds = 0.0;

  bool holds() const {
    return clean_failures.empty() &&
           std::all_of(findings.begin(), findings.end(),
                       [](const FaultFinding& f) { return !f.caught_by.empty() && f.localised; });
  }
};

// Backends by the size of a group, made once: on a card that takes longer than a fault.
class Backends {
 public:
  explicit Backends(std::string device) : device_(std::move(device)) {}

  Backend& of(const Scenario& scenario) {
    std::unique_ptr<Backend>& backend = backends_[scenario.parallel.dcp];
    if (backend == nullptr) {
      backend = make_backend(device_, scenario.collective, static_cast<int>(scenario.parallel.dcp),
                             scenario.timeout_s);
    }
    return *backend;
  }

 private:
  std::string device_;
  std::map<std::int64_t, std::unique_ptr<Backend>> backends_;
};

// Every scenario and probe of the catalogue without its fault.
void run_clean(const std::vector<Fault>& faults, Backends& backends, Kill& kill) {
  std::set<std::string> seen;
  for (const Fault& fault : faults) {
    const Scenario scenario = clean_scenario(fault);
    if (!seen.insert(to_json(scenario)).second) continue;
    const Report report = run_scenario(
        scenario, nullptr, [](double, std::string_view) {}, backends.of(scenario));
    for (const Check& check : report.checks) {
      if (check.status == CheckStatus::kFail) kill.clean_failures.push_back(check.message);
    }
  }
}

std::string to_json(const Kill& kill) {
  nlohmann::ordered_json json = {{"schema", "mladcp.faults/1"},
                                 {"verdict", kill.holds() ? "pass" : "fail"}};
  json["clean"] = kill.clean_failures.empty() ? "pass" : "fail";
  json["faults"] = nlohmann::ordered_json::array();
  for (const FaultFinding& f : kill.findings) {
    json["faults"].push_back({{"name", f.name},
                              {"imitates", f.imitates},
                              {"caught_by", f.caught_by},
                              {"stage", f.stage},
                              {"rank", f.rank},
                              {"stage_expected", f.stage_expected},
                              {"localised", f.localised},
                              {"loose_tolerance_caught", f.loose_tolerance_caught},
                              {"message", f.message}});
  }
  if (!kill.sensitivities.empty()) {
    json["smallest"] = nlohmann::ordered_json::array();
    for (const Sensitivity& s : kill.sensitivities) {
      json["smallest"].push_back({{"kind", s.kind},
                                  {"unit", s.unit},
                                  {"probe", s.probe},
                                  {"length", s.length},
                                  {"smallest", s.smallest}});
    }
  }
  json["seconds"] = kill.seconds;
  return json.dump(2);
}

void print(const Kill& kill) {
  for (const std::string& message : kill.clean_failures) {
    fmt::print("the clean run fails: {}\n", message);
  }
  if (!kill.findings.empty()) {
    fmt::print("{:<34} {:<9} {:<17} {:>4}  {:<9} {:<6} {}\n", "fault", "caught by", "stage", "rank",
               "localised", "loose", "imitates");
  }
  for (const FaultFinding& f : kill.findings) {
    fmt::print("{:<34} {:<9} {:<17} {:>4}  {:<9} {:<6} {}\n", f.name,
               f.caught_by.empty() ? "MISSED" : f.caught_by, f.stage, f.rank,
               f.localised ? "yes" : "NO (" + f.stage_expected + ")",
               f.loose_tolerance_caught ? "sees" : "blind", f.imitates);
  }
  if (!kill.sensitivities.empty()) {
    fmt::print("\n{:<26} {:<17} {:<8} {:>8}  {}\n", "smallest fault caught", "unit", "probe", "S",
               "size");
    for (const Sensitivity& s : kill.sensitivities) {
      fmt::print("{:<26} {:<17} {:<8} {:>8}  {}\n", s.kind, s.unit, s.probe, s.length,
                 s.smallest == 0.0 ? "none" : fmt::format("{:.3g}", s.smallest));
    }
  }
  if (kill.findings.empty()) {  // --smallest --only KIND
    fmt::print(
        "\n{}: no fault of the catalogue was tried, the smallest of one kind alone; {:.1f} s\n",
        kill.holds() ? "PASS" : "FAIL", kill.seconds);
    return;
  }
  const auto count = [&](auto predicate) {
    return std::count_if(kill.findings.begin(), kill.findings.end(), predicate);
  };
  fmt::print(
      "\n{}: {} faults, {} caught, {} localised; a check with rtol = atol = 0.05 sees {}; {:.1f} "
      "s\n",
      kill.holds() ? "PASS" : "FAIL", kill.findings.size(),
      count([](const FaultFinding& f) { return !f.caught_by.empty(); }),
      count([](const FaultFinding& f) { return f.localised; }),
      count([](const FaultFinding& f) { return f.loose_tolerance_caught; }), kill.seconds);
}

struct FaultsVerb {
  explicit FaultsVerb(CLI::App& command) {
    add_value(command, "--only", only, "try this fault alone, with --smallest this kind");
    add_value(command, "--device", device, "cpu or cuda (default cpu)");
    command.add_flag(
        "--smallest", smallest,
        "also find the smallest fault of each kind that is caught, at S 128, 8k, 128k");
    add_json_option(command, json);
  }

  int run() const {
    expect_writable("--json", json);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Fault> faults = chosen_faults();
    const std::vector<FaultKind> kinds = chosen_kinds();
    if (faults.empty() && kinds.empty()) {
      throw InvalidArgument("only = '" + only + "': no such fault; 'mladcp faults' lists them");
    }
    for (Fault& fault : faults) {
      fault.scenario = scenario_on(fault.scenario, device);
      validate(fault.scenario);
    }
    Kill kill;
    Backends backends(device);
    run_clean(faults, backends, kill);
    for (const Fault& fault : faults) {
      kill.findings.push_back(try_fault(fault, backends.of(fault.scenario)));
    }
    for (const FaultKind& kind : kinds) {
      for (const std::int64_t length : {128, 8192, 131072}) {
        const Scenario scenario = scenario_on(sensitivity_scenario(kind, length), device);
        kill.sensitivities.push_back(
            smallest_caught(kind, length, scenario, backends.of(scenario)));
      }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    kill.seconds = seconds.count();
    give_report(
        json, [&] { print(kill); }, [&] { return to_json(kill); });
    return kill.holds() ? kExitPass : kExitCheckFailed;
  }

  std::vector<Fault> chosen_faults() const {
    std::vector<Fault> chosen;
    for (Fault& fault : fault_catalogue()) {
      if (only.empty() || fault.name == only) chosen.push_back(std::move(fault));
    }
    return chosen;
  }

  std::vector<FaultKind> chosen_kinds() const {
    std::vector<FaultKind> chosen;
    if (!smallest) return chosen;
    std::string known;
    for (const FaultKind& kind : fault_kinds()) {
      if (only.empty() || kind.name == only) chosen.push_back(kind);
      known += fmt::format("{}'{}'", known.empty() ? "" : ", ", kind.name);
    }
    if (chosen.empty()) {
      throw InvalidArgument("only = '" + only + "': no kind that --smallest tries; use one of " +
                            known + ", or leave --smallest out");
    }
    return chosen;
  }

  std::string only;
  std::string device = "cpu";
  std::string json;
  bool smallest = false;
};

}  // namespace

void add_faults_verb(CLI::App& program, int& status) {
  CLI::App* command =
      program.add_subcommand("faults", "inject every known fault and see whether it is named");
  const auto verb = std::make_shared<FaultsVerb>(*command);
  command->callback([verb, &status] { status = verb->run(); });
}

}  // namespace mladcp
