#include "kernels/decode/sm90_bf16/decode.h"

#include "core/error.h"
#include "kernels/decode/sm90_bf16/output.cuh"
#include "kernels/decode/sm90_bf16/scores.cuh"
#include "kernels/decode/sm90_common/refusal.h"
#include "kernels/decode/sm90_common/tensor_map.h"
#include "kernels/decode/sm90_fp8/producer.cuh"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

using sm90_bf16::Config;

// One CTA walks one part for one tile of rows, as in the FP8 kernel.
__global__ void __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_bf16_decode_kernel(const __grid_constant__ CUtensorMap cache_map,
                            const __grid_constant__ CUtensorMap query_map,
                            const __grid_constant__ DecodeParams p, int row_tiles, int page_shift,
                            bool query_boxes) {
  extern __shared__ __align__(1024) char shared_bytes[];
  const sm90_fp8::Shared<Config> shared{sm90::shared_address(shared_bytes)};
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 7), 0);
  const int part = blockIdx.x / row_tiles;
  const int tile = blockIdx.x % row_tiles;
  const int guess = warpgroup == 3 ? sm90_fp8::guess_part(p, part) : 0;
  shared.init_factors();
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_descriptor(&cache_map);
    if (query_boxes) sm90::tma_prefetch_descriptor(&query_map);
    shared.init_barriers();
  }
  __syncthreads();
  sm90::wait_for_upstream_grid();
  sm90::allow_dependent_grid();

  if (warpgroup == 3) {
    sm90::shrink_registers<Config::kProducerRegisters>();
    if (threadIdx.x < 416) {
      sm90_fp8::stream_pages<Config>(
          p, shared, part, guess, tile, page_shift,
          [&](std::uint32_t stage, std::uint32_t full, int row, int page) {
            sm90::tma_load_4d(stage, &cache_map, 0, row, 0, page, full, sm90::kEvictFirst);
          },
          [&](int row, int page) { sm90::tma_prefetch_4d(&cache_map, 0, row, 0, page); });
    } else if (query_boxes) {
      sm90_fp8::request_queries<Config, Config::kRows * kDecodeQkDim * 2>(
          p, shared, tile, [&](std::uint32_t full, int head, int row) {
            sm90::tma_load_4d(shared.query(), &query_map, 0, head, row, 0, full,
                              sm90::kEvictNormal);
          });
    } else {
      sm90_bf16::fetch_queries(p, shared, tile);
    }
  } else if (warpgroup == 0) {
    sm90::grow_registers<Config::kSoftmaxRegisters>();
    sm90_fp8::attend<Config, sm90_bf16::QueryOperand>(p, shared, tile);
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
  const int row_tiles = (p.max_rows_per_request * p.num_heads + Config::kRows - 1) / Config::kRows;
  const CUtensorMap map = sm90::make_bf16_cache_map(p);
  const bool query_boxes = sm90::query_tiles_are_boxes(p, Config::kRows);
  const CUtensorMap query_map =
      query_boxes ? sm90::make_bf16_query_map(p, Config::kRows) : map;  // unused otherwise
  int page_shift = 0;
  while ((sm90_fp8::kPageKeys << page_shift) < p.page_size) ++page_shift;
  const auto kernel = sm90_bf16_decode_kernel;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Config::kSharedBytes),
             "sm90_bf16_decode: shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.num_parts * row_tiles));
  config.blockDim = dim3(sm90_fp8::kThreads);
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(
      cudaLaunchKernelEx(&config, kernel, map, query_map, p, row_tiles, page_shift, query_boxes),
      "sm90_bf16_decode: launch");
}

}  // namespace mladcp
