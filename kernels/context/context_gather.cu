#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/context/context_gather.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/e4m3.cuh"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/device/row_tiles.cuh"
#include "kernels/device/vectors.cuh"

namespace mladcp {
namespace {

template <typename In>
struct MovedRow {
  const In* in;
  __nv_bfloat16* out;
};

template <typename In, int kN, typename Address>
__device__ void move_rows(std::int64_t rows, FastDivisor chunks_per_row, float scale,
                          const Address& address) {
  using Row = MovedRow<In>;
  for_each_chunk<Row>(
      rows, chunks_per_row, address,
      [&](const Row& row, std::uint32_t chunk) { return load_vector<In, kN>(row.in + chunk * kN); },
      [&](const Row& row, std::uint32_t chunk, const Vector<In, kN>& values) {
        if constexpr (std::is_same_v<In, E4M3Code>) {
          store_vector(row.out + chunk * kN, dequantize_vector(values, scale));
        } else {
          store_vector(row.out + chunk * kN, values);
        }
      });
}

struct GatherParams {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  const void* cache;
  std::int64_t page_size;
  std::int64_t page_stride;
  std::int64_t row_stride;
  const std::int32_t* block_table;
  std::int64_t table_stride;
  const std::int32_t* cu_seq_lens;
  const std::int32_t* token_to_seq;
  const std::int32_t* seq_starts;
  std::int64_t rows;
  FastDivisor chunks_per_row;
  float scale;
};

template <typename In, int kN>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    gather_kernel(const __grid_constant__ GatherParams p) {
  move_rows<In, kN>(p.rows, p.chunks_per_row, p.scale, [&](std::int64_t t) {
    const std::int64_t s = p.token_to_seq[t];
    const std::int64_t offset = t - p.cu_seq_lens[s] + p.seq_starts[s];
    const std::int64_t page = p.block_table[s * p.table_stride + offset / p.page_size];
    const In* in = static_cast<const In*>(p.cache) +
                   cache_row_offset(page, offset % p.page_size, p.page_stride, p.row_stride);
    return MovedRow<In>{in, p.out + t * p.out_stride};
  });
}

struct ReorganiseParams {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  const __nv_bfloat16* gathered;
  std::int64_t gathered_stride;
  const std::int32_t* source_rows;
  std::int64_t rows;
  FastDivisor chunks_per_row;
};

template <int kN>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    reorganise_kernel(const __grid_constant__ ReorganiseParams p) {
  move_rows<__nv_bfloat16, kN>(p.rows, p.chunks_per_row, 1.0F, [&](std::int64_t i) {
    return MovedRow<__nv_bfloat16>{p.gathered + p.source_rows[i] * p.gathered_stride,
                                   p.out + i * p.out_stride};
  });
}

template <int kN>
void launch_gather(GatherParams p, std::int64_t width, bool quantized, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(width / kN));
  const unsigned blocks = grid_blocks(p.rows, kTileRows);
  if (quantized) {
    gather_kernel<E4M3Code, kN><<<blocks, kTileThreads, 0, stream>>>(p);
  } else {
    gather_kernel<__nv_bfloat16, kN><<<blocks, kTileThreads, 0, stream>>>(p);
  }
  check_launch("gather_kernel");
}

template <int kN>
void launch_reorganise_rows(ReorganiseParams p, std::int64_t width, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(width / kN));
  reorganise_kernel<kN><<<grid_blocks(p.rows, kTileRows), kTileThreads, 0, stream>>>(p);
  check_launch("reorganise_kernel");
}

}  // namespace

void launch_gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                  const TensorView& block_table, const ContextChunkTensors& chunk,
                                  Stream stream) {
  if (out.elements() == 0) return;
  GatherParams p = {};
  p.out = out.as<__nv_bfloat16>();
  p.out_stride = out.strides[0];
  p.cache = cache.data.data;
  p.page_size = cache.page_size();
  p.page_stride = cache.data.strides[0];
  p.row_stride = cache.data.strides[1];
  p.block_table = block_table.as<const std::int32_t>();
  p.table_stride = block_table.strides[0];
  p.cu_seq_lens = chunk.cu_seq_lens.as<const std::int32_t>();
  p.token_to_seq = chunk.token_to_seq.as<const std::int32_t>();
  p.seq_starts = chunk.seq_starts.as<const std::int32_t>();
  p.rows = out.shape[0];
  p.scale = cache.scale;
  const std::int64_t width = out.shape[1];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({out, cache.data}, 8);
  vectors ? launch_gather<8>(p, width, cache.quantized(), cuda_stream(stream))
          : launch_gather<1>(p, width, cache.quantized(), cuda_stream(stream));
}

void launch_reorganise(const TensorView& out, const TensorView& gathered,
                       const TensorView& source_rows, Stream stream) {
  if (out.elements() == 0) return;
  ReorganiseParams p = {};
  p.out = out.as<__nv_bfloat16>();
  p.out_stride = out.strides[0];
  p.gathered = gathered.as<const __nv_bfloat16>();
  p.gathered_stride = gathered.strides[0];
  p.source_rows = source_rows.as<const std::int32_t>();
  p.rows = out.shape[0];
  const std::int64_t width = out.shape[1];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({out, gathered}, 8);
  vectors ? launch_reorganise_rows<8>(p, width, cuda_stream(stream))
          : launch_reorganise_rows<1>(p, width, cuda_stream(stream));
}

}  // namespace mladcp
