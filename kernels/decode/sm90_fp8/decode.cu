#include "core/error.h"
#include "kernels/decode/sm90_common/tensor_map.h"
#include "kernels/decode/sm90_fp8/decode.h"
#include "kernels/decode/sm90_fp8/output.cuh"
#include "kernels/decode/sm90_fp8/producer.cuh"
#include "kernels/decode/sm90_fp8/softmax.cuh"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

using sm90_fp8::Config;
using sm90_fp8::PvFormat;

// One CTA walks one part for one tile of rows; the CTAs of a part lie side by side, so that the
// tiles read the same pages at about the same time and all but the first find them in L2.
template <class C>
__global__ void __launch_bounds__(sm90_fp8::kThreads, 1)
    sm90_fp8_decode_kernel(const __grid_constant__ CUtensorMap latent_map,
                           const __grid_constant__ CUtensorMap rope_map,
                           const __grid_constant__ DecodeParams p, int row_tiles, int page_shift) {
  extern __shared__ __align__(1024) char shared_bytes[];
  const sm90_fp8::Shared<C> shared{sm90::shared_address(shared_bytes)};
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 7), 0);
  const int part = blockIdx.x / row_tiles;
  const int tile = blockIdx.x % row_tiles;

  // The rescale flags, then factors of 1.
  constexpr int kFlagWords = (C::kAlphaOffset - C::kRescaledOffset) / 4;
  constexpr int kFactorWords = (C::kRowScaleOffset - C::kAlphaOffset) / 4;
  if (threadIdx.x < kFlagWords + kFactorWords) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared.rescaled(0) + 4 * threadIdx.x),
                 "f"(threadIdx.x < kFlagWords ? 0.0F : 1.0F)
                 : "memory");
  }
  if (threadIdx.x == 0) {
    sm90::tma_prefetch_descriptor(&latent_map);
    sm90::tma_prefetch_descriptor(&rope_map);
    shared.init_barriers();
  }
  __syncthreads();
  sm90::wait_for_upstream_grid();
  sm90::allow_dependent_grid();

  if (warpgroup == 3) {
    sm90::shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x < 416) {
      sm90_fp8::stream_pages<C>(p, shared, &latent_map, &rope_map, part, tile, page_shift);
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

template <class C>
void launch(const DecodeParams& p, cudaStream_t stream) {
  const int row_tiles = (p.max_rows_per_request * p.num_heads + C::kRows - 1) / C::kRows;
  const sm90::PagedCacheMaps maps = sm90::make_fp8_cache_maps(p);
  int page_shift = 0;
  while ((sm90_fp8::kPageKeys << page_shift) < p.page_size) ++page_shift;
  const auto kernel = sm90_fp8_decode_kernel<C>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes),
      "sm90_fp8_decode: shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.num_parts * row_tiles));
  config.blockDim = dim3(sm90_fp8::kThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, maps.latent, maps.rope, p, row_tiles, page_shift),
             "sm90_fp8_decode: launch");
}

bool is_multiple_of_16(std::int64_t x) { return x % 16 == 0; }

}  // namespace

int sm90_fp8_decode_tile_rows(int max_rows_per_request, int num_heads) {
  const int rows = max_rows_per_request * num_heads;
  return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

int sm90_fp8_decode_overhead_blocks(int max_rows_per_request, int num_heads) {
  return sm90_fp8_decode_tile_rows(max_rows_per_request, num_heads) == 64 ? 4 : 2;
}

std::string sm90_fp8_decode_refusal(const DecodeParams& p) {
  const auto address = [](const void* x) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x));
  };
  if (p.query_dtype != DType::kE4M3 || p.cache_dtype != DType::kE4M3) {
    return "sm90_fp8_decode takes an e4m3 query and an e4m3 cache, got " +
           std::string(name(p.query_dtype)) + " and " + std::string(name(p.cache_dtype));
  }
  if (p.page_size < 64 || (p.page_size & (p.page_size - 1)) != 0) {
    return "sm90_fp8_decode takes pages of 64 times a power of two tokens, got " +
           std::to_string(p.page_size);
  }
  if (!is_multiple_of_16(address(p.query)) || !is_multiple_of_16(p.query_row_stride) ||
      !is_multiple_of_16(p.query_head_stride)) {
    return "sm90_fp8_decode reads the query 16 bytes at a time: its address, row stride " +
           std::to_string(p.query_row_stride) + " and head stride " +
           std::to_string(p.query_head_stride) + " must be multiples of 16 bytes";
  }
  if (!is_multiple_of_16(address(p.cache)) || !is_multiple_of_16(p.cache_page_stride) ||
      !is_multiple_of_16(p.cache_row_stride)) {
    return "sm90_fp8_decode reads the cache by TMA: its address, page stride " +
           std::to_string(p.cache_page_stride) + " and row stride " +
           std::to_string(p.cache_row_stride) + " must be multiples of 16 bytes";
  }
  if (address(p.out) % 4 != 0 || p.out_row_stride % 2 != 0 || p.out_head_stride % 2 != 0) {
    return "sm90_fp8_decode writes pairs of bf16: the output's address and strides must be even";
  }
  if (p.num_requests * p.block_table_stride >= (std::int64_t{1} << 31)) {
    return "sm90_fp8_decode takes block tables of fewer than 2^31 entries, got " +
           std::to_string(p.num_requests) + " x " + std::to_string(p.block_table_stride);
  }
  if (!p.f16_partials) return "sm90_fp8_decode writes f16 partials: set f16_partials";
  if (!(p.logit_scale > 0.0F)) {
    return "sm90_fp8_decode needs logit_scale > 0, got " + std::to_string(p.logit_scale);
  }
  return {};
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
