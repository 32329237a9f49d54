// Attention over a paged latent cache (decode) and over plain rows (prefill). Outputs first;
// nothing allocates. LSE is the natural log-sum-exp everywhere, -inf where nothing is visible.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/kv_cache.h"
#include "core/query.h"
#include "core/tensor.h"

namespace mladcp {

// A tile schedule in given buffers; core/scheduler.h says what the numbers mean.
struct ScheduleTensors {
  TensorView parts;       // [num_parts, 8] int32
  TensorView num_splits;  // [B + 1] int32, cumulative
};

// What a schedule is built for. `heads` are the heads the attention kernel will see: under DCP the
// gathered ones, N * H, for BF16 and FP8 caches alike.
struct ScheduleShape {
  std::int64_t heads = 0;
  std::int64_t q_len = 1;  // most query rows of one request in this step
};

// The query rows of a step, as device tensors. Rows of one request lie together, requests in order.
struct DecodeRows {
  TensorView request;      // [T] int32
  TensorView visible;      // [T] int32: local keys row t may see; 0 for none (padding rows too)
  TensorView row_begin;    // [B + 1] int32: rows of request b are row_begin[b] .. row_begin[b+1]-1
  TensorView lengths;      // [B] int32: largest visible of the request's rows; what schedules split
  TensorView block_table;  // [B, columns] int32, manager pages; unused entries may be anything
  std::int64_t q_len = 1;  // at least the most rows of one request; fixes a kernel's grid
};

struct DecodeScales {
  float softmax_scale = 1.0F;
  float q_scale = 1.0F;  // ignored unless the query is e4m3
};

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  // How many parts build_schedule fills for this shape; sizes ScheduleTensors::parts.
  virtual std::int64_t num_parts(const ScheduleShape& shape) const = 0;

  virtual void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                              const ScheduleShape& shape, Stream stream) = 0;

  // For each row t and head h, over keys k = 0 .. visible[t] - 1 of the request's local cache:
  //   logit  = softmax_scale * q_scale * k_scale * dot(query[t, h], row k)       (codes)
  //   out    = k_scale * sum softmax(logit) * row k[:L],   lse = log sum exp(logit)
  // with q_scale only for an e4m3 query, k_scale only for an e4m3 cache.
  // out [T, H, L] bf16, lse [T, H] fp32; rows that see nothing: anything in out, any lse - stage
  // mask_empty settles them. workspace: see decode_workspace_bytes.
  virtual void decode(const TensorView& out, const TensorView& lse, const Query& query,
                      const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
                      const DecodeScales& scales, const TensorView& workspace, Stream stream) = 0;

  // Bytes of scratch decode needs at most for such a step (0 on the host).
  virtual std::int64_t decode_workspace_bytes(std::int64_t rows, const ScheduleShape& shape,
                                              std::int64_t latent) const = 0;

  // Causal self-attention of new tokens: row i of a request sees rows 0 .. i of the same request.
  // out [M, H, Vd] fp32, lse [M, H] fp32, query and key [M, H, P + R] bf16, value [M, H, Vd] bf16,
  // cu_rows [B + 1] int32; max_rows: most rows of one request.
  virtual void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
                      const TensorView& key, const TensorView& value, const TensorView& cu_rows,
                      std::int64_t max_rows, float softmax_scale, Stream stream) = 0;

  // Unmasked attention of every query row to all context rows of its request in this chunk; a
  // request without context rows gets out 0, lse -inf.
  // cu_context [B + 1] int32 indexes key and value.
  virtual void context(const TensorView& out, const TensorView& lse, const TensorView& query,
                       const TensorView& key, const TensorView& value, const TensorView& cu_rows,
                       std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
                       Stream stream) = 0;
};

}  // namespace mladcp
