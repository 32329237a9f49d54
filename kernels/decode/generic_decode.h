// Paged MLA decode attention for any GPU from sm_80 on, over 16-bit tensor-core products. Query and
// cache may be (bf16, bf16), (e4m3, e4m3) or (bf16, e4m3); pages of 16, 32, 64 or 128 keys.
#pragma once

#include "core/device.h"
#include "kernels/decode/decode_params.h"

namespace mladcp {

inline constexpr int kGenericDecodeRows =
    64;  // query rows (tokens x heads of one request) of one CTA

// Bytes of shared memory a CTA needs at least; a card that offers less cannot run the kernel.
int generic_decode_shared_bytes(DType cache_dtype, int stages);

// Attention; requests with one split are complete afterwards, the others leave partials for
// launch_decode_combine. max_shared_bytes: what a CTA may have on this card, after opting in.
// Throws Unsupported for a dtype pair, page size or alignment it does not offer.
void launch_generic_decode(const DecodeParams& params, int max_shared_bytes, Stream stream);

}  // namespace mladcp
