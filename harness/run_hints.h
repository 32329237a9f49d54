// What somebody should know who starts a run: said on standard error, by the first process of a
// job.
#pragma once

#include "harness/scenario.h"

namespace mladcp {

// That processes of mpirun each run all ranks where --collective does not let them meet; that a run
// on the CPU takes minutes (an estimate of 2 or more).
void hint_before_run(const Scenario& scenario);

}  // namespace mladcp
