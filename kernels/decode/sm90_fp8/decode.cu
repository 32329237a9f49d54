#include <algorithm>
#include <vector>

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

// CTA {tile, part} walks one part for one tile of rows.
template <class C>
__global__ void __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_fp8_decode_kernel(const __grid_constant__ CUtensorMap latent_map,
                           const __grid_constant__ CUtensorMap rope_map,
                           const __grid_constant__ CUtensorMap query_latent_map,
                           const __grid_constant__ CUtensorMap query_rope_map,
                           const __grid_constant__ DecodeParams p, int page_shift, bool query_boxes,
                           float page_ns) {
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
  if (tile == 0 && threadIdx.x >= sm90_fp8::kThreads - 32) {
    sm90_fp8::prefetch_first_page(p, guess, page_shift, [&](int row, int page) {
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
      sm90_fp8::Pace pace(p, page_ns);
      const auto deliver = [&](int row, int page) {
        const int in_flight = pace.wait() ? C::kStagesInFlightLate : C::kStagesInFlight;
        const auto load = [&](std::uint32_t stage, std::uint32_t full) {
          sm90::tma_load_4d(stage, &latent_map, 0, row, 0, page, full, sm90::kEvictFirst);
          sm90::tma_load_3d(stage + sm90_fp8::kRopeTileOffset, &rope_map, 0, row, page, full,
                            sm90::kEvictFirst);
        };
        sm90_fp8::fill_stage(shared, page_at, load, in_flight);
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
    sm90_fp8::attend<C>(p, shared, tile);
  } else {
    sm90::grow_registers<C::kPvRegisters>();
    sm90_fp8::accumulate_output<C>(shared, warpgroup - 1);
  }
}

struct CardPace {
  float page_ns;  // what the memory takes for a page, 0 where its clock is not told
  float processors;
};

// Of every device, asked for once, because the driver takes long over the clock.
std::vector<CardPace> card_paces() {
  constexpr double kReached = 0.92;  // of what the memory's pins could carry
  int devices = 0;
  check_cuda(cudaGetDeviceCount(&devices), "sm90_fp8_decode");
  std::vector<CardPace> paces;
  for (int device = 0; device < devices; ++device) {
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      check_cuda(cudaDeviceGetAttribute(&value, which, device), "sm90_fp8_decode");
      return static_cast<double>(value);
    };
    // Two transfers a clock; kHz and bits.
    const double bytes_per_ns = 2.0 * attribute(cudaDevAttrMemoryClockRate) * 1e-6 *
                                attribute(cudaDevAttrGlobalMemoryBusWidth) / 8.0;
    const double page_ns =
        bytes_per_ns > 0.0 ? sm90_fp8::kPageBytes / (kReached * bytes_per_ns) : 0.0;
    paces.push_back({static_cast<float>(page_ns),
                     static_cast<float>(attribute(cudaDevAttrMultiProcessorCount))});
  }
  return paces;
}

// For Pace, by part. Row tiles of one part share pages, and then it is not the memory that binds;
// parts for which there is no multiprocessor yet take nothing from the others.
float paced_page_ns(const DecodeParams& p, int tile_rows) {
  if (sm90::row_tiles(p, tile_rows) > 1) return 0.0F;
  static const std::vector<CardPace> paces = card_paces();
  int device = 0;
  check_cuda(cudaGetDevice(&device), "sm90_fp8_decode");
  const CardPace& card = paces[static_cast<std::size_t>(device)];
  return card.page_ns * std::min(1.0F, card.processors / static_cast<float>(p.num_parts));
}

template <class C>
void launch(const DecodeParams& p, cudaStream_t stream) {
  const sm90::PagedCacheMaps maps = sm90::make_fp8_cache_maps(p);
  const bool query_boxes = sm90::query_tiles_are_boxes(p, C::kRows);
  const sm90::PagedCacheMaps query_maps =
      query_boxes ? sm90::make_fp8_query_maps(p, C::kRows) : maps;  // unused otherwise
  const float page_ns = paced_page_ns(p, C::kRows);
  sm90::launch_decode("sm90_fp8_decode", p, C::kRows, sm90_fp8::kThreads, C::kSharedBytes, stream,
                      sm90_fp8_decode_kernel<C>, maps.latent, maps.rope, query_maps.latent,
                      query_maps.rope, p, sm90::page_shift(p), query_boxes, page_ns);
}

}  // namespace

int sm90_fp8_decode_tile_rows(int max_rows_per_request, int num_heads) {
  const int rows = max_rows_per_request * num_heads;
  return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
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
      return launch<Config<16>>(p, stream);
    case 32:
      return launch<Config<32>>(p, stream);
    default:
      return launch<Config<64>>(p, stream);
  }
}

}  // namespace mladcp
