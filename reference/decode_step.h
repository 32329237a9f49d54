// One decode call on the host with its shapes checked and settled.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_ops.h"
#include "reference/host_rows.h"

namespace mladcp {

// Query row (t, h) of the step is row (t - first_row(b)) * heads + h of its request b.
struct DecodeStep {
  std::int64_t requests, rows, heads, latent, width;
  const Query& query;
  const KvCache& cache;
  const DecodeRows& plan;
  float logit_scale;   // softmax_scale * q_scale * k_scale
  float output_scale;  // k_scale

  std::int64_t first_row(std::int64_t b) const { return index_at(plan.row_begin, b); }
  std::int64_t query_rows(std::int64_t b) const {
    return (first_row(b + 1) - first_row(b)) * heads;
  }
};

// InvalidArgument (or Unsupported for a pair of formats) unless everything fits together. The step
// refers to the arguments.
DecodeStep settle(const TensorView& out, const TensorView& lse, const Query& query,
                  const KvCache& cache, const DecodeRows& rows, const DecodeScales& scales);

// The largest visible of each request's rows [B]. InvalidArgument when row_begin does not ascend
// or a page these keys need leaves the block table or the cache; other table entries are not read.
std::vector<std::int64_t> visible_keys(const DecodeStep& step);

}  // namespace mladcp
