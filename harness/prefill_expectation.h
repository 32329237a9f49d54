// What a chunked prefill must move where, counted out position by position: who keeps a token is
// asked of owner() alone, not of plan, slot or local-row arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/prefill_plan.h"
#include "harness/problem.h"
#include "harness/scenario.h"

namespace mladcp {

// Token `position` of `request` in destination row `row`.
struct PlacedToken {
  std::int64_t row = 0;
  std::int64_t request = 0;
  std::int64_t position = 0;
};

ChunkGeometry chunk_geometry(const Scenario& scenario);

// A step as DecodeProblem gives it: request b has length - q_len tokens of context and q_len new
// ones.
std::vector<PrefillRequest> prefill_requests(const DecodeProblem& problem);

class PrefillExpectation {
 public:
  // Plans the step as the ranks do before any fault changes it. Only the plan's pieces (which
  // positions a chunk takes) are relied on, and plan_violations judges those.
  PrefillExpectation(const Scenario& scenario, const DecodeProblem& problem,
                     const PagedLayout& layout);

  // The context as the cache gives it back, bf16 [sum of contexts, D], requests and positions in
  // order; and where request b begins in it.
  const TensorView& context_rows() const { return context_rows_; }
  std::int64_t context_begin(std::int64_t request) const {
    return context_begin_[static_cast<std::size_t>(request)];
  }
  const std::vector<PrefillRequest>& requests() const { return requests_; }
  const PrefillPlan& plan() const { return plan_; }
  const ContextChunk& chunk(std::int64_t c) const {
    return plan_.context.chunks[static_cast<std::size_t>(c)];
  }
  std::int64_t chunks() const { return static_cast<std::int64_t>(plan_.context.chunks.size()); }

  // Local rows of chunk c that are tokens; all others are padding and may hold anything.
  std::vector<PlacedToken> local_tokens(std::int64_t c, std::int64_t rank) const;
  // Reorganised rows of chunk c: requests in order, inside them ranks in order.
  std::vector<PlacedToken> reorganised_tokens(std::int64_t c) const;

 private:
  KvSharding sharding_;
  std::vector<PrefillRequest> requests_;
  std::vector<std::int64_t> context_begin_;
  Tensor context_rows_;
  PrefillPlan plan_;
};

// Everything wrong with a rank's plan, by counting: chunks that do not fit, a context token that
// comes not exactly once or from the wrong local row, slots and positions of new tokens. `first`
// describes the first fault.
std::int64_t plan_violations(const Scenario& scenario, const DecodeProblem& problem,
                             const PagedLayout& layout, std::int64_t rank, const PrefillPlan& plan,
                             std::string& first);

}  // namespace mladcp
