// Checks of a chunked prefill: plan, movement and calls exactly, attention and merges within
// derived bounds (docs/prefill.md).
#pragma once

#include <vector>

#include "harness/check.h"
#include "harness/prefill_run.h"
#include "harness/prefill_watch.h"
#include "reference/prefill_bounds.h"

namespace mladcp {

// One group's step, run and watched.
struct JudgedPrefill {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const PagedLayout& layout;
  const PrefillExpectation& expectation;
  const PrefillSample& sample;
  const PrefillGroupOutcome& outcome;
  const std::vector<PrefillWatch>& watches;  // [N] by rank

  const PrefillWatch& watch(int rank) const { return watches[static_cast<std::size_t>(rank)]; }
};

// Stages "plan", "write", "gather", "exchange", "reorganise", "merge" (what it met) and
// "collectives" of every rank that ran here.
std::vector<Check> exact_prefill_checks(const JudgedPrefill& judged);

// Stages "causal", "context attention", "merge" of every chunk, and "output": the whole step and
// its LSE against the unsharded problem. Each on the sampled rows and heads of every rank that ran
// here.
std::vector<Check> bounded_prefill_checks(const JudgedPrefill& judged,
                                          const PrefillFormats& formats);

}  // namespace mladcp
