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

// Stages "causal", "context attention", "merge" (one head of every chunk) and "output" (the whole
// step and its LSE against the unsharded problem). FP64 over all heads and rows of a long batch
// would take hours: "output" audits as many heads as fit a fixed amount of work, and of many rows
// some of every request, the first and last among them; its name says how many.
std::vector<Check> bounded_prefill_checks(const Scenario& scenario, const DecodeProblem& problem,
                                          const PrefillExpectation& expectation,
                                          const PrefillGroupOutcome& outcome,
                                          const PrefillFormats& formats);

}  // namespace mladcp
