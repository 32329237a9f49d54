// How the census counts one step of a phase, pass by pass.
#pragma once

#include <functional>
#include <vector>

#include "harness/census.h"
#include "harness/phase_steps.h"
#include "harness/probe.h"

namespace mladcp {

// Calls count(pass, problem, group) for every pass on every group of a census step.
void for_each_pass(const ProbeContext& step, const std::vector<CensusPass>& passes,
                   const std::function<void(const CensusPass& pass, const DecodeProblem& problem,
                                            std::int64_t group)>& count);

// A chunked prefill: counts every key in the new tokens' own attention, in every chunk's, after
// every merge and in the output. A rank attends for its own heads alone, so its heads audit every
// window by themselves.
ProbeOutcome count_prefill(const ProbeContext& step, const PhasePlan& plan);

}  // namespace mladcp
