// Operations on the paged cache and on gathered context rows. Outputs first; nothing allocates.
#pragma once

#include "core/device.h"
#include "core/kv_cache.h"
#include "core/tensor.h"

namespace mladcp {

// One chunk of a gathered context as device tensors; core/chunk_plan.h builds the numbers.
struct ContextChunkTensors {
  TensorView cu_seq_lens;   // [B + 1] int32: padded_local_cu_seq_lens
  TensorView token_to_seq;  // [toks] int32: request of each padded local row
  TensorView seq_starts;    // [B] int32: local rows already done
  TensorView source_rows;   // [rows] int32: reorganise reads gathered row source_rows[i]
};

class CacheOps {
 public:
  virtual ~CacheOps() = default;

  // cache row slots[t] = [kv_c[t] | k_pe[t]] (e4m3: divided by cache.scale, rounded, saturated).
  // slots[t] < 0 writes nothing. kv_c [T, L] bf16, k_pe [T, R] bf16, slots [T] int64.
  virtual void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                     const TensorView& slots, Stream stream) = 0;

  // Destination row t: s = token_to_seq[t], off = t - cu_seq_lens[s] + seq_starts[s],
  //   out[t, :] = bf16(float(cache[block_table[s][off / page]][off % page]) * cache.scale),
  // a BF16 cache is copied. out [toks, D] bf16 (a part of a larger workspace may be passed),
  // block_table [B, columns] int32. Host implementations refuse indices past the table before
  // anything is read (InvalidArgument naming request and column); on a device the plan was checked
  // when it was built.
  virtual void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                     const TensorView& block_table,
                                     const ContextChunkTensors& chunk, Stream stream) = 0;

  // out[i, :] = gathered[source_rows[i], :], bits moved; drops the padding between ranks' shares.
  // out [rows, D] bf16, gathered [N * toks, D] bf16, source_rows [rows] int32.
  virtual void reorganise(const TensorView& out, const TensorView& gathered,
                          const TensorView& source_rows, Stream stream) = 0;
};

}  // namespace mladcp
