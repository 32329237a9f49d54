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
struct PageLoader {
  const sm90_bf16::Shared& shared;
  const CUtensorMap* tile_map;
  sm90_bf16::RopeCursor rope_at;
  sm90_bf16::HalfCursor half_at;

  __device__ __forceinline__ void operator()(int row, int page) {
    const auto load_tile = [&](std::uint32_t to, int tile, std::uint32_t full) {
      sm90::tma_load_4d(to, tile_map, 0, row, tile, page, full, sm90::kEvictFirst);
    };
    const auto load_half = [&](int half) {
      sm90_fp8::fill_stage(shared, half_at, [&](std::uint32_t stage, std::uint32_t full) {
#pragma unroll
        for (int i = 0; i < sm90_bf16::kHalfTiles; ++i) {
          load_tile(stage + i * sm90_bf16::kTileBytes, sm90_bf16::latent_tile(half, i), full);
        }
      });
    };
    if ((threadIdx.x & 31) == 0) {
      const std::uint32_t full = shared.rope_full(rope_at.slot());
      sm90::barrier_wait(shared.rope_empty(rope_at.slot()), rope_at.parity() ^ 1);
      sm90::barrier_arrive_expect_bytes(full, sm90_bf16::kTileBytes);
      load_tile(shared.rope(rope_at.slot()), sm90_bf16::kRopeTile, full);
    }
    rope_at.advance();
    load_half(0);
    load_half(1);
  }
};

// One CTA walks one part for one tile of rows, as in the FP8 kernel. Maps: the tiles of a page, and
// in one box the query's tiles that live in shared memory.
__global__ void __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_bf16_decode_kernel(const __grid_constant__ CUtensorMap tile_map,
                            const __grid_constant__ CUtensorMap query_map,
                            const __grid_constant__ DecodeParams p, int page_shift,
                            bool query_boxes) {
  extern __shared__ __align__(1024) char shared_bytes[];
  const sm90_bf16::Shared shared{{sm90::shared_address(shared_bytes)}};
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 7), 0);
  const int tile = blockIdx.x;
  const int part = blockIdx.y;
  const int guess = warpgroup == 3 ? sm90_fp8::guess_part(p, part) : 0;
  shared.init_factors();
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_descriptor(&tile_map);
    if (query_boxes) sm90::tma_prefetch_descriptor(&query_map);
    shared.init_barriers();
  }
  __syncthreads();
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
    sm90::shrink_registers<Config::kProducerRegisters>();
    if (threadIdx.x < 416) {
      PageLoader load_page{shared, &tile_map};
      sm90_fp8::stream_pages(p, shared, part, guess, tile, page_shift, load_page);
    } else if (query_boxes) {
      constexpr int kBytes = sm90_bf16::kQueryTiles * sm90_bf16::kTileBytes;
      sm90_fp8::request_queries<Config, kBytes>(
          p, shared, tile, [&](std::uint32_t full, int head, int row) {
            sm90::tma_load_4d(shared.query(), &query_map, 0, head, row, 0, full,
                              sm90::kEvictNormal);
          });
    } else {
      sm90_bf16::fetch_queries(p, shared, tile);
    }
  } else if (warpgroup == 0) {
    sm90::grow_registers<Config::kSoftmaxRegisters>();
    sm90_bf16::attend(p, shared, tile);
  } else {
    sm90::grow_registers<Config::kPvRegisters>();
    sm90_bf16::accumulate_output(shared, warpgroup - 1);
  }
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
  const CUtensorMap tile_map = sm90::make_bf16_cache_map(p);
  const bool query_boxes = sm90::query_tiles_are_boxes(p, Config::kRows);
  const CUtensorMap query_map =
      query_boxes ? sm90::make_bf16_query_map(p, Config::kRows, sm90_bf16::kQueryRegisterTiles)
                  : tile_map;  // unused otherwise
  sm90::launch_decode("sm90_bf16_decode", p, Config::kRows, sm90_fp8::kThreads,
                      Config::kSharedBytes, stream, sm90_bf16_decode_kernel, tile_map, query_map, p,
                      sm90::page_shift(p), query_boxes);
}

}  // namespace mladcp
