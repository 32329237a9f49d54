// The tensors of a chunked prefill on one rank. Rows, keys, values and results are sized once, so a
// step allocates nothing; the plan's own index arrays grow in load() when a plan is the longest
// yet.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cache_ops.h"
#include "core/config.h"
#include "core/kv_cache.h"
#include "core/prefill_plan.h"
#include "core/tensor.h"

namespace mladcp {

// The largest step a workspace serves.
struct PrefillLimits {
  std::int64_t rows = 0;            // T, new tokens of a step
  std::int64_t workspace_rows = 0;  // global rows of a chunk: ChunkGeometry::workspace_rows
};

class PrefillWorkspace {
 public:
  // InvalidArgument when workspace_rows is no multiple of config.dcp.
  PrefillWorkspace(Device& device, const ParallelConfig& config, const MlaDims& dims,
                   const PrefillLimits& limits);

  // Copies a plan into the index tensors, in one copy; later views have its extents.
  // InvalidArgument when the plan passes the limits or is for another number of ranks.
  void load(const PrefillPlan& plan, Stream stream);

  const MlaDims& dims() const { return dims_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t max_rows() const { return max_rows_; }
  std::int64_t chunks() const { return static_cast<std::int64_t>(chunks_.size()); }

  // Plan, as loaded.
  TensorView slots() const;                                // [T] int64
  TensorView cu_rows() const { return cu_rows_; }          // [B + 1] int32
  TensorView block_table() const { return block_table_; }  // [B, columns] int32
  const ContextChunkTensors& chunk(std::int64_t c) const { return at(c).tensors; }
  TensorView cu_context(std::int64_t c) const { return at(c).cu_context; }  // [B + 1] int32

  // Rows of chunk c. With one rank there is neither exchange nor padding: all three are the same.
  TensorView local_rows(std::int64_t c) const;     // [toks, D] bf16
  TensorView gathered_rows(std::int64_t c) const;  // [N * toks, D] bf16, rank blocks in order
  TensorView context_rows(std::int64_t c) const;   // [rows, D] bf16, no padding
  TensorView new_rows() const;                     // [T, D] bf16, raw: never through the cache

  // Keys and values of `rows` rows; new tokens and chunks use the same memory in turn.
  TensorView key(std::int64_t rows) const;    // [rows, H, P + R] bf16
  TensorView value(std::int64_t rows) const;  // [rows, H, Vd] bf16

  TensorView running() const;      // [T, H, Vd] fp32
  TensorView running_lse() const;  // [T, H] fp32
  TensorView partial() const;      // [T, H, Vd] fp32, of one chunk
  TensorView partial_lse() const;  // [T, H] fp32
  TensorView output() const;       // [T, H, Vd] bf16

 private:
  struct Chunk {
    ContextChunkTensors tensors;
    TensorView cu_context;
    std::int64_t toks = 0;
    std::int64_t rows = 0;
  };

  const Chunk& at(std::int64_t c) const { return chunks_[static_cast<std::size_t>(c)]; }
  void reserve_indices(std::int64_t count);

  Device* device_;
  MlaDims dims_;
  PrefillLimits limits_;
  std::int64_t world_size_;
  std::int64_t heads_;  // H
  std::int64_t rows_ = 0;
  std::int64_t max_rows_ = 0;
  TensorView cu_rows_, block_table_;
  std::vector<Chunk> chunks_;

  Tensor indices_, slots_;
  Tensor local_rows_, gathered_rows_, context_rows_, new_rows_, key_, value_;
  Tensor running_, running_lse_, partial_, partial_lse_, output_;
};

}  // namespace mladcp
