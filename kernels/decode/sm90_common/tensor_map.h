// Tensor maps over a paged cache.
#pragma once

#include <cuda.h>

#include "kernels/decode/decode_params.h"

namespace mladcp::sm90 {

// A 64-key block of an e4m3 cache is two boxes: its latent part as [4][64 keys][128 B] tiles
// swizzled by 128 bytes, its rope part as one [64 keys][64 B] tile swizzled by 64 bytes.
// Coordinates: latent {0, row in page, 0, page}, rope {0, row in page, page}.
struct PagedCacheMaps {
  CUtensorMap latent;
  CUtensorMap rope;
};
PagedCacheMaps make_fp8_cache_maps(const DecodeParams& params);

}  // namespace mladcp::sm90
