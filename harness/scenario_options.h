// The command line of a scenario. Flags override what --scenario FILE says; what neither says is
// the default of harness/scenario.h.
#pragma once

#include <memory>

#include "harness/scenario.h"

namespace CLI {
class App;
}

namespace mladcp {

class ScenarioOptions {
 public:
  explicit ScenarioOptions(CLI::App& command);  // adds the flags; the command outlives this
  ~ScenarioOptions();

  // After parsing: the scenario, lengths read, validated. InvalidArgument otherwise.
  Scenario resolve() const;

 private:
  struct Flags;
  std::unique_ptr<Flags> flags_;
};

}  // namespace mladcp
