// Dense FP8 MLA decode on Hopper: e4m3 query, e4m3 cache, pages of 64 or a multiple.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/decode/decode_params.h"

namespace mladcp {

// Empty when the kernel, on any sm_90 device, takes this problem, else why not.
std::string sm90_fp8_decode_refusal(const DecodeParams& params);

// Query rows (tokens x heads) of one request that one CTA carries: 16, 32 or 64. The schedule's
// parts times the row tiles are the CTAs, so num_parts should be multiprocessors / row tiles.
int sm90_fp8_decode_tile_rows(int max_rows_per_request, int num_heads);

// Enqueues the attention of one step on `stream`; splits are left as partials for
// launch_decode_combine. Allocates nothing, reads nothing on the host, may be captured in a graph.
// Throws Unsupported with sm90_fp8_decode_refusal's text, CudaError when the launch fails.
void launch_sm90_fp8_decode(const DecodeParams& params, cudaStream_t stream);

}  // namespace mladcp
