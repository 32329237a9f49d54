// Runs one decode step of a whole DCP group and keeps what every stage of every rank left behind.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/call_log.h"
#include "core/decode_plan.h"
#include "harness/backend.h"
#include "harness/problem.h"
#include "harness/scenario.h"
#include "harness/taps.h"
#include "harness/variation.h"

namespace mladcp {

struct RankOutcome {
  DecodePlan plan;
  TapStore taps;       // stage tensors, see harness/taps.h
  Tensor cache_after;  // [pages, page, D] as the step left it
  Tensor output;       // [T, H, Vd] bf16
};

struct GroupOutcome {
  std::int64_t group = 0;
  std::vector<RankOutcome> ranks;
  std::vector<CallRecord> calls;  // by rank, in order
  double seconds = 0.0;           // of the step, the slowest rank
  bool complete = true;  // false in a process that does not judge: the outcomes went to rank 0's
};

// The combined output [T, H, X] bf16 of a rank whose group has N > 1 ranks, wherever its combine
// left it.
const TensorView& combined_output(const TapStore& taps);

// `variation` may be null. Errors of a rank are rethrown (harness/group_runner.h).
GroupOutcome run_decode_group(const Scenario& scenario, const DecodeProblem& problem,
                              const PagedLayout& layout, std::int64_t group, Backend& backend,
                              const Variation* variation);

}  // namespace mladcp
