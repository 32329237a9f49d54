// The tensors of a decode step on one rank, sized once: a step allocates nothing, and every step of
// one shape uses the same addresses (CUDA graphs replay them with new contents).
#pragma once

#include <cstdint>

#include "core/attention_ops.h"
#include "core/config.h"
#include "core/decode_plan.h"
#include "core/side_stream.h"
#include "core/tensor.h"

namespace mladcp {

// The largest step a workspace serves.
struct DecodeLimits {
  std::int64_t rows = 0;      // T
  std::int64_t requests = 0;  // B
  std::int64_t columns = 0;   // of the block table
  std::int64_t q_len = 1;     // most rows of one request
};

class DecodeWorkspace {
 public:
  DecodeWorkspace(Device& device, const ParallelConfig& config, const MlaDims& dims,
                  const AttentionOps& attention, const DecodeLimits& limits);

  // Copies a plan into the plan tensors; later views have its extents. Not part of a captured step.
  // InvalidArgument when the plan passes the limits.
  void load(const DecodePlan& plan, Stream stream);

  // Of the step: its schedule is built there, beside the query's way.
  const SideStream& side() const { return side_; }

  std::int64_t rows() const { return rows_; }
  const DecodeLimits& limits() const { return limits_; }

  // Plan, as loaded.
  DecodeRows plan_rows() const;
  TensorView slots() const;          // [T] int64
  ScheduleTensors schedule() const;  // parts for gathered heads
  ScheduleShape schedule_shape() const;

  // Tensors whose heads are gathered or scattered (*) are stored heads first, as [heads, T, ..], so
  // that each rank's block is one run of memory and travels without a copy.

  // Query stages. query_heads is H, or Hg when every rank holds the gathered heads' queries.
  TensorView absorbed() const;        // [T, query_heads, L] bf16
  TensorView local_query() const;     // [T, query_heads, D] e4m3 or bf16 (*)
  TensorView gathered_query() const;  // [T, Hg, D] e4m3 or bf16 (*)

  // Attention. X is L, or Vd after project_before_merge.
  TensorView partial() const;            // [T, Hg, L] bf16
  TensorView lse() const;                // [T, Hg] fp32
  TensorView attention_scratch() const;  // bytes
  TensorView projected_partial() const;  // [T, Hg, Vd] bf16

  // Combine.
  TensorView gathered_lse() const;  // [N, T, Hg] fp32
  TensorView corrected() const;     // [T, Hg, X] reduce dtype (*)
  TensorView reduced() const;       // [T, H, X] reduce dtype (*)
  TensorView partials() const;      // [N, T, H, X] bf16
  TensorView partial_lses() const;  // [N, T, H] fp32
  TensorView packed_out() const;    // [N, T, H, X + 2] bf16, to send
  TensorView packed_in() const;     // [N, T, H, X + 2] bf16, received
  TensorView combined() const;      // [T, H, X] bf16 (*)
  TensorView combined_lse() const;  // [T, H] fp32
  // [T, H, Vd] bf16; where project_before_merge makes it the combined output, heads first (*)
  TensorView output() const;

 private:
  TensorView view(const Tensor& storage, const Shape& shape) const;
  TensorView heads_first(const Tensor& storage, std::int64_t heads, std::int64_t width) const;
  std::int64_t width() const { return config_.project_before_merge ? dims_.value : dims_.latent; }

  SideStream side_;
  ParallelConfig config_;
  MlaDims dims_;
  DecodeLimits limits_;
  std::int64_t rows_ = 0;
  std::int64_t requests_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t query_heads_ = 0;
  std::int64_t max_q_len_ = 1;
  std::int64_t num_parts_ = 0;
  const AttentionOps* attention_ = nullptr;

  Tensor request_, visible_, row_begin_, lengths_, block_table_, slots_, parts_, num_splits_;
  Tensor absorbed_, local_query_, gathered_query_, partial_, lse_, scratch_, projected_partial_;
  Tensor gathered_lse_, corrected_, reduced_, partials_, partial_lses_, packed_out_, packed_in_;
  Tensor combined_, combined_lse_, output_;
};

}  // namespace mladcp
