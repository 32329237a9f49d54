// The command line of a scenario. Flags override what --scenario FILE says; what neither says is
// the default of harness/scenario.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/scenario.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace mladcp {

// The command that runs it: what a failing random scenario is reported as.
std::string command_line(const Scenario& scenario);

class ScenarioOptions {
 public:
  explicit ScenarioOptions(CLI::App& command);  // adds the flags; the command outlives this

  // After parsing: the scenario, lengths read, validated. InvalidArgument otherwise.
  Scenario resolve() const;

  // The files that the flags name: --scenario, --lengths.
  std::vector<std::string> input_files() const;

 private:
  std::string file_;
  std::map<std::string, CLI::Option*> flags_;  // by key
};

}  // namespace mladcp
