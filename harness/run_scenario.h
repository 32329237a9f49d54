// From a scenario to a report: runs the probes it names and puts their findings in stage order.
#pragma once

#include "harness/probe.h"
#include "harness/report.h"
#include "harness/scenario.h"

namespace mladcp {

// `variation` may be null.
Report run_scenario(const Scenario& scenario, const Variation* variation, const Progress& progress);

}  // namespace mladcp
