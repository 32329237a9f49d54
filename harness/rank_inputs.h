// From global tensors to what one rank holds: its heads, its shard of the cache.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "core/decode.h"
#include "core/decode_plan.h"
#include "core/tensor.h"
#include "harness/problem.h"

namespace mladcp {

// Which of the model's heads a rank holds. Group g's rank r is TP rank g * N + r.
struct HeadRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
HeadRange local_heads(const ParallelConfig& config, std::int64_t group, std::int64_t rank);
HeadRange gathered_heads(const ParallelConfig& config, std::int64_t group);

// Owns a rank's inputs on its device.
struct RankInputs {
  Tensor q_nope, q_rope, kv_c, k_pe, w_uk, w_uv, cache;

  DecodeInputs views(const ParallelConfig& config) const;
};

// The rank's cache before this step, on the host: `[pages, page, D]` in config.kv_dtype. Every
// earlier token this rank owns is in its slot; every other slot holds NaN.
// Tokens are placed by enumerating owner(), not through plan or slot arithmetic.
Tensor cache_before_step(const ParallelConfig& config, const DecodeProblem& problem,
                         const PagedLayout& layout, std::int64_t rank);
// The same after the step: this step's tokens are there too. What stage "write" is judged by.
Tensor cache_after_step(const ParallelConfig& config, const DecodeProblem& problem,
                        const PagedLayout& layout, std::int64_t rank);

RankInputs make_rank_inputs(const ParallelConfig& config, const DecodeProblem& problem,
                            const PagedLayout& layout, std::int64_t group, std::int64_t rank,
                            Device& device, Stream stream);

}  // namespace mladcp
