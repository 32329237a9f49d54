#include "kernels/decode/sm90_common/tensor_map.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/device/cuda_error.h"

namespace mladcp::sm90 {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's encoder, found through the runtime so that nothing links against libcuda.
Encode encoder() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess) {
      throw CudaError("cuTensorMapEncodeTiled is missing: the driver is older than CUDA 12.0");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

// `rank` dims innermost first; strides (bytes) of all but the innermost.
CUtensorMap make_map(const char* what, const void* base, int rank, const cuuint64_t* dims,
                     const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  // Promotion to 128 bytes: 256 costs 8 % of the streaming rate, none 2 %.
  const CUresult result = encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, static_cast<cuuint32_t>(rank), const_cast<void*>(base),
      dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError(std::string("cuTensorMapEncodeTiled(") + what + ") failed with CUresult " +
                    std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace

PagedCacheMaps make_fp8_cache_maps(const DecodeParams& p) {
  const auto rows = static_cast<cuuint64_t>(p.page_size);
  const auto pages = static_cast<cuuint64_t>(p.num_pages);
  const auto row_bytes = static_cast<cuuint64_t>(p.cache_row_stride);
  const auto page_bytes = static_cast<cuuint64_t>(p.cache_page_stride);
  const cuuint64_t latent_dims[] = {128, rows, 4, pages};
  const cuuint64_t latent_strides[] = {row_bytes, 128, page_bytes};
  const cuuint32_t latent_box[] = {128, 64, 4, 1};
  const cuuint64_t rope_dims[] = {64, rows, pages};
  const cuuint64_t rope_strides[] = {row_bytes, page_bytes};
  const cuuint32_t rope_box[] = {64, 64, 1};
  PagedCacheMaps maps;
  maps.latent = make_map("latent", p.cache, 4, latent_dims, latent_strides, latent_box,
                         CU_TENSOR_MAP_SWIZZLE_128B);
  maps.rope = make_map("rope", static_cast<const char*>(p.cache) + kDecodeLatentRank, 3, rope_dims,
                       rope_strides, rope_box, CU_TENSOR_MAP_SWIZZLE_64B);
  return maps;
}

bool query_tiles_are_boxes(const DecodeParams& p, int tile_rows) {
  return p.num_heads % tile_rows == 0 || tile_rows % p.num_heads == 0;
}

namespace {

// `tiles` tiles of `width` bytes of every head, from `base` on.
CUtensorMap make_query_map(const DecodeParams& p, int tile_rows, int element_bytes,
                           const void* base, cuuint32_t width, cuuint32_t tiles) {
  const auto heads = static_cast<cuuint32_t>(p.num_heads);
  const cuuint32_t box_heads = std::min(heads, static_cast<cuuint32_t>(tile_rows));
  const cuuint64_t dims[] = {width, heads, static_cast<cuuint64_t>(p.num_rows), tiles};
  // The stride of a single head is nobody's business and may be 0, which the encoder refuses.
  const std::int64_t head_stride = heads == 1 ? kDecodeQkDim : p.query_head_stride;
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(head_stride * element_bytes),
                                static_cast<cuuint64_t>(p.query_row_stride * element_bytes), width};
  const cuuint32_t box[] = {width, box_heads, static_cast<cuuint32_t>(tile_rows) / box_heads,
                            tiles};
  return make_map("query", base, tiles == 1 ? 3 : 4, dims, strides, box,
                  width == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

}  // namespace

PagedCacheMaps make_fp8_query_maps(const DecodeParams& p, int tile_rows) {
  const auto* query = static_cast<const char*>(p.query);
  return {make_query_map(p, tile_rows, 1, query, 128, 4),
          make_query_map(p, tile_rows, 1, query + kDecodeLatentRank, 64, 1)};
}

CUtensorMap make_bf16_query_map(const DecodeParams& p, int tile_rows, int first_tile, int tiles) {
  return make_query_map(p, tile_rows, 2, static_cast<const char*>(p.query) + 128 * first_tile, 128,
                        static_cast<cuuint32_t>(tiles));
}

CUtensorMap make_bf16_cache_map(const DecodeParams& p) {
  const cuuint64_t dims[] = {128, static_cast<cuuint64_t>(p.page_size), 9,
                             static_cast<cuuint64_t>(p.num_pages)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(2 * p.cache_row_stride), 128,
                                static_cast<cuuint64_t>(2 * p.cache_page_stride)};
  const cuuint32_t box[] = {128, 64, 1, 1};
  return make_map("cache", p.cache, 4, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace mladcp::sm90
