// The census of a chunked prefill: counts every key in the new tokens' own attention, in every
// chunk's, after every merge and in the output.
#pragma once

#include "harness/phase_steps.h"
#include "harness/probe.h"

namespace mladcp {

// One prefill step of a census scenario. A rank attends for its own heads alone, so its heads audit
// every window by themselves.
ProbeOutcome count_prefill(const ProbeContext& step, const PhasePlan& plan);

}  // namespace mladcp
