// Combining partial results by their LSE. The merge law, guarded selects and all, is stated once in
// core/lse_merge.h. Outputs first; nothing allocates.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

class CombineOps {
 public:
  virtual ~CombineOps() = default;

  // Rows with visible[t] == 0: out[t] = 0, lse[t] = -inf. Converts any foreign empty marker.
  // out [T, H, L] bf16, lse [T, H] fp32, visible [T] int32.
  virtual void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                          Stream stream) = 0;

  // corrected[t, h, :] = w_rank(t, h) * partial[t, h, :], the weight of this rank's partial among
  // lses [N, T, H] fp32; weight 0 gives exactly 0 whatever the partial holds. May work in place.
  // corrected [T, H, X] bf16 or fp32 (fp32: the reduction that follows is in fp32),
  // partial [T, H, X] bf16 or fp32.
  virtual void correct(const TensorView& corrected, const TensorView& partial,
                       const TensorView& lses, int rank, Stream stream) = 0;

  // The whole merge of N partials, in rank order, in fp32, rounded once.
  // out [T, H, X] bf16 or fp32, lse [T, H] fp32; partials [N, T, H, X] bf16 or fp32,
  // lses [N, T, H] fp32.
  virtual void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
                     const TensorView& lses, Stream stream) = 0;

  // (running, running_lse) = merge of (running, running_lse) and (partial, partial_lse); rows whose
  // partial_lse is empty stay untouched, bit for bit. All [M, H, X] fp32 and [M, H] fp32.
  virtual void merge_into(const TensorView& running, const TensorView& running_lse,
                          const TensorView& partial, const TensorView& partial_lse,
                          Stream stream) = 0;

  // packed[s, t, h, :L] = partial[t, s * H + h, :]; packed[s, t, h, L:] = the fp32 LSE's bits in
  // two bf16 lanes, low half first. packed [N, T, H, X + 2] bf16, partial [T, N * H, X] bf16, lse
  // [T, N * H] fp32.
  virtual void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
                    Stream stream) = 0;

  // The inverse on the receiving side: partials [N, T, H, X] bf16, lses [N, T, H] fp32.
  virtual void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
                      Stream stream) = 0;

  // out = value rounded to out's dtype, elementwise (fp32 -> bf16 after an fp32 reduction).
  virtual void round_to(const TensorView& out, const TensorView& value, Stream stream) = 0;
};

}  // namespace mladcp
