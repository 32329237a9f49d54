#include "core/error.h"
#include "kernels/decode/sm90_common/launch.h"
#include "kernels/decode/sm90_common/refusal.h"
#include "kernels/decode/sm90_common/tensor_map.h"
#include "kernels/decode/sm90_fp8/decode.h"
#include "kernels/decode/sm90_fp8/output.cuh"
#include "kernels/decode/sm90_fp8/producer.cuh"
#include "kernels/decode/sm90_fp8/softmax.cuh"

namespace mladcp {
namespace {

using sm90_fp8::Config;
using sm90_fp8::PvFormat;

// CTA {tile, part} walks one part for one tile of rows.
template <class C>
__global__ void __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_fp8_decode_kernel(const __grid_constant__ CUtensorMap latent_map,
                           const __grid_constant__ CUtensorMap rope_map,
                           const __grid_constant__ CUtensorMap query_latent_map,
                           const __grid_constant__ CUtensorMap query_rope_map,
                           const __grid_constant__ DecodeParams p, int page_shift,
                           bool query_boxes) {
  extern __shared__ __align__(1024) char shared_bytes[];
  const sm90_fp8::Shared<C> shared{sm90::shared_address(shared_bytes)};
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 7), 0);
  const int tile = blockIdx.x;
  const int part = blockIdx.y;

  const int guess = warpgroup == 3 ? sm90_fp8::guess_part(p, part) : 0;
  shared.init_factors();
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_descriptor(&latent_map);
    sm90::tma_prefetch_descriptor(&rope_map);
    if (query_boxes) {
      sm90::tma_prefetch_descriptor(&query_latent_map);
      sm90::tma_prefetch_descriptor(&query_rope_map);
    }
    shared.init_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= sm90_fp8::kThreads - 32) {
    sm90_fp8::prefetch_first_pages<C>(p, guess, tile, page_shift, [&](int row, int page) {
      sm90::tma_prefetch_4d(&latent_map, 0, row, 0, page);
      sm90::tma_prefetch_3d(&rope_map, 0, row, page);
    });
  }
  sm90::wait_for_upstream_grid();
  sm90::allow_dependent_grid();

  if (warpgroup == 3) {
    sm90::shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x < 416) {
      sm90_fp8::RingCursor<C::kStages> page_at;
      const auto deliver = [&](int row, int page) {
        sm90_fp8::fill_stage(shared, page_at, [&](std::uint32_t stage, std::uint32_t full) {
          sm90::tma_load_4d(stage, &latent_map, 0, row, 0, page, full, sm90::kEvictFirst);
          sm90::tma_load_3d(stage + sm90_fp8::kRopeTileOffset, &rope_map, 0, row, page, full,
                            sm90::kEvictFirst);
        });
      };
      sm90_fp8::stream_pages(p, shared, part, guess, tile, page_shift, deliver);
    } else if (query_boxes) {
      sm90_fp8::request_queries<C, C::kRows * kDecodeQkDim>(
          p, shared, tile, [&](std::uint32_t full, int head, int row) {
            sm90::tma_load_4d(shared.query(), &query_latent_map, 0, head, row, 0, full,
                              sm90::kEvictNormal);
            sm90::tma_load_3d(shared.query() + C::kQueryRopeTile, &query_rope_map, 0, head, row,
                              full, sm90::kEvictNormal);
          });
    } else {
      sm90_fp8::fetch_queries<C>(p, shared, tile);
    }
  } else if (warpgroup == 0) {
    if constexpr (C::kSoftmaxRegisters < 128) {
      sm90::shrink_registers<C::kSoftmaxRegisters>();
    } else {
      sm90::grow_registers<C::kSoftmaxRegisters>();
    }
    sm90_fp8::attend<C, sm90_fp8::QueryOperand<C>>(p, shared, tile);
  } else {
    sm90::grow_registers<C::kPvRegisters>();
    sm90_fp8::accumulate_output<C>(shared, warpgroup - 1);
  }
}

template <class C>
void launch(const DecodeParams& p, cudaStream_t stream) {
  const sm90::PagedCacheMaps maps = sm90::make_fp8_cache_maps(p);
  const bool query_boxes = sm90::query_tiles_are_boxes(p, C::kRows);
  const sm90::PagedCacheMaps query_maps =
      query_boxes ? sm90::make_fp8_query_maps(p, C::kRows) : maps;  // unused otherwise
  sm90::launch_decode("sm90_fp8_decode", p, C::kRows, sm90_fp8::kThreads, C::kSharedBytes, stream,
                      sm90_fp8_decode_kernel<C>, maps.latent, maps.rope, query_maps.latent,
                      query_maps.rope, p, sm90::page_shift(p), query_boxes);
}

}  // namespace

int sm90_fp8_decode_tile_rows(int max_rows_per_request, int num_heads) {
  const int rows = max_rows_per_request * num_heads;
  return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

int sm90_fp8_decode_overhead_blocks(int max_rows_per_request, int num_heads) {
  return sm90_fp8_decode_tile_rows(max_rows_per_request, num_heads) == 64 ? 4 : 2;
}

std::string sm90_fp8_decode_refusal(const DecodeParams& p) {
  if (p.query_dtype != DType::kE4M3 || p.cache_dtype != DType::kE4M3) {
    return "sm90_fp8_decode takes an e4m3 query and an e4m3 cache, got " +
           std::string(name(p.query_dtype)) + " and " + std::string(name(p.cache_dtype));
  }
  if (!p.f16_partials) return "sm90_fp8_decode writes f16 partials: set f16_partials";
  return sm90::decode_refusal(p, "sm90_fp8_decode", 1);
}

void launch_sm90_fp8_decode(const DecodeParams& p, cudaStream_t stream) {
  const std::string refusal = sm90_fp8_decode_refusal(p);
  if (!refusal.empty()) throw Unsupported(refusal);
  if (p.num_rows == 0 || p.num_requests == 0 || p.num_parts == 0) return;
  switch (sm90_fp8_decode_tile_rows(p.max_rows_per_request, p.num_heads)) {
    case 16:
      return launch<Config<16, PvFormat::kF16>>(p, stream);
    case 32:
      return launch<Config<32, PvFormat::kF16>>(p, stream);
    default:
      return launch<Config<64, PvFormat::kE4M3>>(p, stream);
  }
}

}  // namespace mladcp
