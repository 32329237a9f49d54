// Runs one chunked prefill of a whole DCP group, every rank under observation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/call_log.h"
#include "harness/backend.h"
#include "harness/prefill_expectation.h"
#include "harness/prefill_observer.h"
#include "harness/problem.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

struct PrefillRankOutcome {
  int rank = 0;
  PrefillPlan plan;    // as run
  Tensor cache_after;  // [pages, page, D] as the step left it
  Tensor output;       // [T, H, Vd] bf16
  Tensor lse;          // [T, H] fp32
};

struct PrefillGroupOutcome {
  std::int64_t group = 0;
  std::vector<PrefillRankOutcome> ranks;  // those of this process, rising
  std::vector<CallRecord> calls;          // theirs, in order
  double seconds = 0.0;                   // of the step, the slowest of them; observing included
};

// Request b of `problem` has length - q_len tokens of context and q_len new ones. observers: one a
// rank of the group. `variation` may be null. Errors of a rank are rethrown.
PrefillGroupOutcome run_prefill_group(const Scenario& scenario, const DecodeProblem& problem,
                                      const PagedLayout& layout, std::int64_t group,
                                      Backend& backend, const Variation* variation,
                                      std::span<PrefillObserver* const> observers);

}  // namespace mladcp
