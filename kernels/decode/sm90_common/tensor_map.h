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

// The query rows of a tile as boxes laid out like a page: latent [4][tile rows][128 B] swizzled by
// 128 bytes, rope [tile rows][64 B] swizzled by 64 bytes. Coordinates: latent {0, head, query row,
// 0}, rope {0, head, query row}. Only for tiles that are whole query rows or parts of one.
bool query_tiles_are_boxes(const DecodeParams& params, int tile_rows);
PagedCacheMaps make_fp8_query_maps(const DecodeParams& params, int tile_rows);
// The same for bf16, whose rows are nine tiles of 64 dims: `tiles` of them from `first_tile`
// on, [tiles][tile rows][128 B], in one box; coordinates {0, head, query row, 0}.
CUtensorMap make_bf16_query_map(const DecodeParams& params, int tile_rows, int first_tile,
                                int tiles);

// A 64-key block of a bf16 cache is nine boxes, of 64 dims each: [64 keys][128 B] tiles swizzled by
// 128 bytes. Coordinates {0, row in page, tile, page}.
CUtensorMap make_bf16_cache_map(const DecodeParams& params);

}  // namespace mladcp::sm90
