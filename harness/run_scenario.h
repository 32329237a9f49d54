// From a scenario to a report: runs the probes it names and puts their findings in stage order.
#pragma once

#include "harness/probe.h"
#include "harness/report.h"
#include "harness/scenario.h"

namespace mladcp {

// `variation` may be null. InvalidArgument also for what the device's operations do not offer.
Report run_scenario(const Scenario& scenario, const Variation* variation, const Progress& progress);
// The same on a backend made before, for as many ranks as the scenario's groups have.
Report run_scenario(const Scenario& scenario, const Variation* variation, const Progress& progress,
                    Backend& backend);

}  // namespace mladcp
