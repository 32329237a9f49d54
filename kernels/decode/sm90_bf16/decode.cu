#include "kernels/decode/sm90_bf16/decode.h"

#include "core/error.h"
#include "kernels/decode/sm90_bf16/output.cuh"
#include "kernels/decode/sm90_bf16/scores.cuh"
#include "kernels/decode/sm90_common/launch.h"
#include "kernels/decode/sm90_common/refusal.h"
#include "kernels/decode/sm90_common/tensor_map.h"
#include "kernels/decode/sm90_fp8/producer.cuh"

namespace mladcp {
namespace {

using sm90_bf16::Config;

// Starts the copies of a page, piece by piece, as room for them becomes free. All lanes of a warp.
template <class C>
struct PageLoader {
  const sm90_bf16::Shared<C>& shared;
  const CUtensorMap* tile_map;
  int rank;  // in the pair
  sm90_bf16::RopeCursor<C> rope_at;
  sm90_bf16::HalfCursor<C> half_at;

  // In the order in which room for them becomes free.
  __device__ __forceinline__ void operator()(int row, int page) {
    const bool loads = (threadIdx.x & 31) == 0;
    if constexpr (C::kPair) {
      sm90_bf16::HalfAt half[sm90_bf16::kHalves];
      half_at.take(half, rank);
      if (loads) {
#pragma unroll
        for (int i = 0; i < sm90_bf16::kHalves; ++i) {
          const std::uint32_t full = shared.page_full(half[i].slot);
          sm90::barrier_wait(shared.page_empty(half[i].slot), half[i].parity ^ 1);
          sm90::barrier_arrive_expect_bytes(full, C::kStageBytes);
          load_half(row, page, i, shared.stage(half[i].slot), full);
        }
        load_rope(row, page);
      }
    } else {
      if (loads) load_rope(row, page);
      for (int i = 0; i < sm90_bf16::kHalves; ++i) {
        sm90_fp8::fill_stage(shared, half_at.kept, [&](std::uint32_t stage, std::uint32_t full) {
          load_half(row, page, i, stage, full);
        });
      }
    }
    rope_at.advance();
  }

 private:
  __device__ __forceinline__ void load_tile(int row, int page, int tile, std::uint32_t to,
                                            std::uint32_t full) const {
    // Where several pairs read a page, the first of them leaves it to the others.
    sm90::tma_load_4d(
        to, tile_map, 0, row, tile, page, full,
        gridDim.x > C::kClusterTiles && C::kPair ? sm90::kEvictNormal : sm90::kEvictFirst);
  }
  __device__ __forceinline__ void load_half(int row, int page, int half, std::uint32_t stage,
                                            std::uint32_t full) const {
#pragma unroll
    for (int i = 0; i < sm90_bf16::kHalfTiles; ++i) {
      load_tile(row, page, C::latent_tile(half, i), stage + i * sm90_bf16::kTileBytes, full);
    }
  }
  __device__ __forceinline__ void load_rope(int row, int page) const {
    const std::uint32_t full = shared.rope_full(rope_at.slot());
    sm90::barrier_wait(shared.rope_empty(rope_at.slot()), rope_at.parity() ^ 1);
    sm90::barrier_arrive_expect_bytes(full, sm90_bf16::kTileBytes);
    load_tile(row, page, sm90_bf16::kRopeTile, shared.rope(rope_at.slot()), full);
  }
};

// One CTA walks one part for one tile of rows, as in the FP8 kernel. Maps: the tiles of a page, and
// in one box the query's tiles that live in shared memory.
template <class C>
__global__ void __cluster_dims__(C::kClusterTiles, 1, 1) __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_bf16_decode_kernel(const __grid_constant__ CUtensorMap tile_map,
                            const __grid_constant__ CUtensorMap query_map,
                            const __grid_constant__ DecodeParams p, int page_shift,
                            bool query_boxes) {
  extern __shared__ __align__(1024) char shared_bytes[];
  const sm90_bf16::Shared<C> shared{{sm90::shared_address(shared_bytes)}};
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 7), 0);
  const int tile = blockIdx.x;
  const int part = blockIdx.y;
  const int rank = tile % C::kClusterTiles;  // in the pair
  const int guess = warpgroup == 3 ? sm90_fp8::guess_part(p, part) : 0;
  shared.init_factors();
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_descriptor(&tile_map);
    if (query_boxes) sm90::tma_prefetch_descriptor(&query_map);
    shared.init_barriers();
  }
  if constexpr (C::kPair) {
    sm90::cluster_sync();
  } else {
    __syncthreads();
  }
  if (tile == 0 && threadIdx.x >= sm90_fp8::kThreads - 32) {
    sm90_fp8::prefetch_first_page(p, guess, page_shift, [&](int row, int page) {
      for (int i = 0; i < sm90_bf16::kTiles; ++i) {
        sm90::tma_prefetch_4d(&tile_map, 0, row, i, page);
      }
    });
  }
  sm90::wait_for_upstream_grid();
  sm90::allow_dependent_grid();

  if (warpgroup == 3) {
    sm90::shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x < 416) {
      PageLoader<C> load_page{shared, &tile_map, rank};
      sm90_fp8::stream_pages(p, shared, part, guess, tile, page_shift, load_page);
    } else if (query_boxes) {
      constexpr int kBytes = sm90_bf16::kQueryTiles * sm90_bf16::kTileBytes;
      sm90_fp8::request_queries<C, kBytes>(p, shared, tile,
                                           [&](std::uint32_t full, int head, int row) {
                                             sm90::tma_load_4d(shared.query(), &query_map, 0, head,
                                                               row, 0, full, sm90::kEvictNormal);
                                           });
    } else {
      sm90_bf16::fetch_queries(p, shared, tile);
    }
  } else if (warpgroup == 0) {
    sm90::grow_registers<C::kSoftmaxRegisters>();
    sm90_bf16::ScoreWarp<C>(p, shared, tile, rank).attend();
  } else {
    sm90::grow_registers<C::kPvRegisters>();
    sm90_bf16::OutputThread<C>(shared, warpgroup - 1, rank).accumulate();
  }
  // Nobody leaves while its partner may still write to it.
  if constexpr (C::kPair) sm90::cluster_sync();
}

template <class C>
void launch(const DecodeParams& p, cudaStream_t stream) {
  const CUtensorMap tile_map = sm90::make_bf16_cache_map(p);
  const bool query_boxes = sm90::query_tiles_are_boxes(p, C::kRows);
  const CUtensorMap query_map =
      query_boxes
          ? sm90::make_bf16_query_map(p, C::kRows, C::kFirstSharedTile, sm90_bf16::kQueryTiles)
          : tile_map;  // unused otherwise
  sm90::launch_decode("sm90_bf16_decode", p, C::kRows, sm90_fp8::kThreads, C::kSharedBytes, stream,
                      sm90_bf16_decode_kernel<C>, tile_map, query_map, p, sm90::page_shift(p),
                      query_boxes);
}

}  // namespace

std::string sm90_bf16_decode_refusal(const DecodeParams& p) {
  if (p.query_dtype != DType::kBF16 || p.cache_dtype != DType::kBF16) {
    return "sm90_bf16_decode takes a bf16 query and a bf16 cache, got " +
           std::string(name(p.query_dtype)) + " and " + std::string(name(p.cache_dtype));
  }
  if (p.f16_partials) return "sm90_bf16_decode writes fp32 partials: clear f16_partials";
  return sm90::decode_refusal(p, "sm90_bf16_decode", 2);
}

void launch_sm90_bf16_decode(const DecodeParams& p, cudaStream_t stream) {
  const std::string refusal = sm90_bf16_decode_refusal(p);
  if (!refusal.empty()) throw Unsupported(refusal);
  if (p.num_rows == 0 || p.num_requests == 0 || p.num_parts == 0) return;
  if (sm90::row_tiles(p, Config<false>::kRows) % 2 == 0) {
    launch<Config<true>>(p, stream);
  } else {
    launch<Config<false>>(p, stream);
  }
}

}  // namespace mladcp
