// Runs one chunked prefill of a whole DCP group, every rank under watch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/call_log.h"
#include "harness/backend.h"
#include "harness/prefill_watch.h"
#include "harness/problem.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

struct PrefillRankOutcome {
  PrefillPlan plan;  // as run
  std::unique_ptr<PrefillWatch> watch;
  Tensor cache_after;  // [pages, page, D] as the step left it
  Tensor output;       // [T, H, Vd] bf16
  Tensor lse;          // [T, H] fp32
};

struct PrefillGroupOutcome {
  std::int64_t group = 0;
  std::vector<PrefillRankOutcome> ranks;
  std::vector<CallRecord> calls;  // by rank, in order
  double seconds = 0.0;           // of the step, the slowest rank; watching included
};

ChunkGeometry chunk_geometry(const Scenario& scenario);

// `expectation` and `sample` outlive the outcome; `variation` may be null.
PrefillGroupOutcome run_prefill_group(const Scenario& scenario, const DecodeProblem& problem,
                                      const PagedLayout& layout,
                                      const PrefillExpectation& expectation,
                                      const PrefillSample& sample, std::int64_t group,
                                      Backend& backend, const Variation* variation);

}  // namespace mladcp
