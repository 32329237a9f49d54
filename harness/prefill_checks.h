// Checks of a chunked prefill: plan, movement and calls exactly, attention and merges within
// derived bounds (docs/prefill.md).
#pragma once

#include <vector>

#include "harness/check.h"
#include "harness/prefill_run.h"
#include "reference/prefill_bounds.h"

namespace mladcp {

// Stages "plan", "write", "gather", "exchange", "reorganise", "collectives" of every rank of a
// group.
std::vector<Check> exact_prefill_checks(const Scenario& scenario, const DecodeProblem& problem,
                                        const PagedLayout& layout,
                                        const PrefillExpectation& expectation,
                                        const PrefillGroupOutcome& outcome);

// Stages "causal", "context attention", "merge" of every chunk, and "output": the whole step and
// its LSE against the unsharded problem. Each on the sampled rows and heads.
std::vector<Check> bounded_prefill_checks(const Scenario& scenario, const DecodeProblem& problem,
                                          const PrefillExpectation& expectation,
                                          const PrefillSample& sample,
                                          const PrefillGroupOutcome& outcome,
                                          const PrefillFormats& formats);

}  // namespace mladcp
