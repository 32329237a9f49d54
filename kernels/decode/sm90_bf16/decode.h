// Dense BF16 MLA decode on Hopper: bf16 query, bf16 cache, pages of 64 or a multiple.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/decode/decode_params.h"

namespace mladcp {

// Empty when the kernel takes this problem, else why not.
std::string sm90_bf16_decode_refusal(const DecodeParams& params);

// Enqueues the attention of one step on `stream`; splits are left as fp32 partials for
// launch_decode_combine. A CTA carries 64 query rows of a request. Allocates nothing, reads nothing
// on the host, may be captured in a graph. Throws Unsupported with sm90_bf16_decode_refusal's text,
// CudaError when the launch fails.
void launch_sm90_bf16_decode(const DecodeParams& params, cudaStream_t stream);

}  // namespace mladcp
