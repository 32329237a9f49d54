// A fault of the catalogue under a probe of one's choice.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "harness/fault.h"
#include "harness/run_scenario.h"

namespace mladcp {

// The first check that fails; one that passed when none does.
inline Check first_failure(const std::string& fault_name, const std::string& probe) {
  for (const Fault& fault : fault_catalogue()) {
    if (fault.name != fault_name) continue;
    Scenario scenario = fault.scenario;
    scenario.probes = {probe};
    const Report report =
        run_scenario(scenario, fault.variation.get(), [](double, std::string_view) {});
    for (const Check& check : report.checks) {
      if (check.status == CheckStatus::kFail) return check;
    }
    return {};
  }
  ADD_FAILURE() << "no fault " << fault_name;
  return {};
}

}  // namespace mladcp
