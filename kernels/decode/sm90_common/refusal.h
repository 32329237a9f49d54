// What the Hopper decode kernels ask of any problem.
#pragma once

#include <string>
#include <string_view>

#include "kernels/decode/decode_params.h"

namespace mladcp::sm90 {

// Empty when TMA and the kernels' vector accesses can take pages, strides and addresses, else why
// not, in the name of `kernel`. `element_bytes`: of query and cache.
std::string decode_refusal(const DecodeParams& params, std::string_view kernel, int element_bytes);

}  // namespace mladcp::sm90
