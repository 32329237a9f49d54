#include "kernels/device/cuda_stream.h"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/query/concat.h"
#include "kernels/query/join_rows.cuh"

namespace mladcp {
namespace {

struct ConcatParams {
  void* out;
  const __nv_bfloat16* latent;
  const __nv_bfloat16* rope;
  std::int64_t rows;  // T * H
  WideDivisor heads;
  std::int64_t out_strides[2];  // of t and h
  std::int64_t latent_strides[2];
  std::int64_t rope_strides[2];
  FastDivisor chunks_per_row;
  std::uint32_t latent_chunks;
  float scale;
};

template <typename Out>
__device__ JoinedRow<Out> joined_row(const ConcatParams& p, std::int64_t row) {
  const std::int64_t t = p.heads.quotient(row);
  const std::int64_t h = row - t * p.heads.divisor();
  return {p.latent + t * p.latent_strides[0] + h * p.latent_strides[1],
          p.rope + t * p.rope_strides[0] + h * p.rope_strides[1],
          static_cast<Out*>(p.out) + t * p.out_strides[0] + h * p.out_strides[1]};
}

template <typename Out, int kN>
__global__ void __launch_bounds__(kTileThreads, kJoinBlocksPerSm<kN>)
    concat_kernel(const __grid_constant__ ConcatParams p) {
  wait_for_upstream_grid();
  allow_dependent_grid();
  join_rows<Out, kN>(p.rows, p.chunks_per_row, p.latent_chunks, p.scale,
                     [&](std::int64_t row) { return joined_row<Out>(p, row); });
}

// A step of few rows: a thread a chunk, which knows where to look before its turn comes.
constexpr std::int64_t kFewRows = 4096;
constexpr int kFewThreads = 128;

template <typename Out, int kN>
__global__ void __launch_bounds__(kFewThreads)
    concat_few_kernel(const __grid_constant__ ConcatParams p) {
  const std::uint32_t item = blockIdx.x * kFewThreads + threadIdx.x;
  const std::uint32_t row = p.chunks_per_row.quotient(item);
  const std::uint32_t chunk = item - row * p.chunks_per_row.divisor();
  const JoinedRow<Out> joined = joined_row<Out>(p, row);
  const JoinQuotient<kN> quotient(p.scale);
  wait_for_upstream_grid();
  allow_dependent_grid();
  if (row >= p.rows) return;
  store_joined<kN>(joined, chunk, load_joined<kN>(joined, chunk, p.latent_chunks), quotient);
}

template <typename Out, int kN>
void launch(ConcatParams p, std::int64_t width, std::int64_t latent, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(width / kN));
  p.latent_chunks = static_cast<std::uint32_t>(latent / kN);
  launch_dependent("concat_kernel", concat_kernel<Out, kN>, grid_blocks(p.rows, kJoinTileRows<kN>),
                   kTileThreads, 0, stream, p);
}

template <typename Out, int kN>
void launch_few(ConcatParams p, std::int64_t width, std::int64_t latent, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(width / kN));
  p.latent_chunks = static_cast<std::uint32_t>(latent / kN);
  launch_dependent("concat_few_kernel", concat_few_kernel<Out, kN>,
                   grid_blocks(p.rows * (width / kN), kFewThreads), kFewThreads, 0, stream, p);
}

}  // namespace

void launch_concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
                   float q_scale, Stream stream) {
  if (out.elements() == 0) return;
  ConcatParams p = {};
  p.out = out.data;
  p.latent = latent.as<const __nv_bfloat16>();
  p.rope = rope.as<const __nv_bfloat16>();
  p.rows = out.shape[0] * out.shape[1];
  p.heads = WideDivisor(out.shape[1], p.rows);
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = out.strides[dim];
    p.latent_strides[dim] = latent.strides[dim];
    p.rope_strides[dim] = rope.strides[dim];
  }
  p.scale = q_scale;
  const auto allow = [&](std::int64_t elements) {
    return latent.shape[2] % elements == 0 && rope.shape[2] % elements == 0 &&
           rows_allow_vectors({out, latent, rope}, elements);
  };
  const std::int64_t width = out.shape[2];
  const bool few = p.rows <= kFewRows && p.rows * width <= kFewThreads * kMostBlocks;
  const bool codes = out.dtype == DType::kE4M3;
  const bool eights = allow(8) && (!codes || is_moderate(p.scale));
  auto launcher = eights ? launch<__nv_bfloat16, 8> : launch<__nv_bfloat16, 1>;
  if (few && codes) {
    launcher = eights ? launch_few<E4M3Code, 8> : launch_few<E4M3Code, 1>;
  } else if (few) {
    launcher = eights ? launch_few<__nv_bfloat16, 8> : launch_few<__nv_bfloat16, 1>;
  } else if (codes) {
    launcher = eights && allow(16) ? launch<E4M3Code, 16>
               : eights            ? launch<E4M3Code, 8>
                                   : launch<E4M3Code, 1>;
  }
  launcher(p, width, latent.shape[2], cuda_stream(stream));
}

}  // namespace mladcp
