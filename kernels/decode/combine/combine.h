// Merges the splits of decode requests that several parts share.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/decode/decode_params.h"

namespace mladcp {

// out and lse of every row whose request has more than one split, from partial_out and partial_lse:
//
//   m = max lse_s, w_s = exp(lse_s - m) / sum exp(lse_s - m), out = sum w_s partial_s,
//   lse = m + log sum exp(lse_s - m);   all splits empty: out 0, lse -inf.
//
// Splits enter in an order that depends on their number alone, so results are bitwise repeatable.
// Requests with one split are left alone. Runs after any decode kernel on the same stream (on
// Hopper as its programmatic dependent), allocates nothing, may be captured. Throws CudaError.
void launch_decode_combine(const DecodeParams& params, cudaStream_t stream);

}  // namespace mladcp
