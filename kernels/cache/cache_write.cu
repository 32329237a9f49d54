#include "kernels/cache/cache_write.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/query/join_rows.cuh"

namespace mladcp {
namespace {

struct CacheWriteParams {
  void* cache;
  WideDivisor page_size;
  std::int64_t page_stride;
  std::int64_t row_stride;
  const __nv_bfloat16* latent;
  const __nv_bfloat16* rope;
  const std::int64_t* slots;
  std::int64_t tokens;
  std::int64_t latent_stride;
  std::int64_t rope_stride;
  FastDivisor chunks_per_row;
  std::uint32_t latent_chunks;
  float scale;
};

template <typename Out, int kN>
__global__ void __launch_bounds__(kTileThreads, kJoinBlocksPerSm<kN>)
    cache_write_kernel(const __grid_constant__ CacheWriteParams p) {
  join_rows<Out, kN>(p.tokens, p.chunks_per_row, p.latent_chunks, p.scale, [&](std::int64_t t) {
    const std::int64_t slot = p.slots[t];
    Out* out = nullptr;
    if (slot >= 0) {
      const std::int64_t page = p.page_size.quotient(slot);
      out = static_cast<Out*>(p.cache) + cache_row_offset(page, slot - page * p.page_size.divisor(),
                                                          p.page_stride, p.row_stride);
    }
    return JoinedRow<Out>{p.latent + t * p.latent_stride, p.rope + t * p.rope_stride, out};
  });
}

template <typename Out, int kN>
void launch(CacheWriteParams p, const KvCache& cache, std::int64_t latent, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(cache.data.shape[2] / kN));
  p.latent_chunks = static_cast<std::uint32_t>(latent / kN);
  const unsigned blocks = grid_blocks(p.tokens, kJoinTileRows<kN>);
  cache_write_kernel<Out, kN><<<blocks, kTileThreads, 0, stream>>>(p);
  check_launch("cache_write_kernel");
}

}  // namespace

void launch_cache_write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                        const TensorView& slots, Stream stream) {
  if (slots.elements() == 0) return;
  CacheWriteParams p = {};
  p.cache = cache.data.data;
  p.page_size = WideDivisor(cache.page_size(), cache.pages() * cache.page_size());
  p.page_stride = cache.data.strides[0];
  p.row_stride = cache.data.strides[1];
  p.latent = kv_c.as<const __nv_bfloat16>();
  p.rope = k_pe.as<const __nv_bfloat16>();
  p.slots = slots.as<const std::int64_t>();
  p.tokens = slots.shape[0];
  p.latent_stride = kv_c.strides[0];
  p.rope_stride = k_pe.strides[0];
  p.scale = cache.scale;
  const auto allow = [&](std::int64_t elements) {
    return kv_c.shape[1] % elements == 0 && k_pe.shape[1] % elements == 0 &&
           rows_allow_vectors({cache.data, kv_c, k_pe}, elements);
  };
  const auto bf16 = allow(8) ? launch<__nv_bfloat16, 8> : launch<__nv_bfloat16, 1>;
  const auto e4m3 = !is_moderate(p.scale) ? launch<E4M3Code, 1>
                    : allow(16)           ? launch<E4M3Code, 16>
                    : allow(8)            ? launch<E4M3Code, 8>
                                          : launch<E4M3Code, 1>;
  const auto launcher = cache.quantized() ? e4m3 : bf16;
  launcher(p, cache, kv_c.shape[1], cuda_stream(stream));
}

}  // namespace mladcp
