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

template <typename Out, int kN, int kRows>
__global__ void __launch_bounds__(kTileThreads, kJoinBlocksPerSm<kN>)
    concat_kernel(const __grid_constant__ ConcatParams p) {
  wait_for_upstream_grid();
  allow_dependent_grid();
  join_rows<Out, kN, kRows>(
      p.rows, p.chunks_per_row, p.latent_chunks, p.scale, [&](std::int64_t row) {
        const std::int64_t t = p.heads.quotient(row);
        const std::int64_t h = row - t * p.heads.divisor();
        return JoinedRow<Out>{
            p.latent + t * p.latent_strides[0] + h * p.latent_strides[1],
            p.rope + t * p.rope_strides[0] + h * p.rope_strides[1],
            static_cast<Out*>(p.out) + t * p.out_strides[0] + h * p.out_strides[1]};
      });
}

template <typename Out, int kN>
void launch(ConcatParams p, const TensorView& out, std::int64_t latent, cudaStream_t stream) {
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(out.shape[2] / kN));
  p.latent_chunks = static_cast<std::uint32_t>(latent / kN);
  constexpr std::int64_t kFewTiles = 128;
  const bool few = p.rows <= kFewTiles * kJoinTileRows<kN>;
  const int rows = few ? kFewJoinTileRows : kJoinTileRows<kN>;
  const auto kernel =
      few ? concat_kernel<Out, kN, kFewJoinTileRows> : concat_kernel<Out, kN, kJoinTileRows<kN>>;
  launch_dependent("concat_kernel", kernel, grid_blocks(p.rows, rows), kTileThreads, 0, stream, p);
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
  const auto bf16 = allow(8) ? launch<__nv_bfloat16, 8> : launch<__nv_bfloat16, 1>;
  const auto e4m3 = !is_moderate(p.scale) ? launch<E4M3Code, 1>
                    : allow(16)           ? launch<E4M3Code, 16>
                    : allow(8)            ? launch<E4M3Code, 8>
                                          : launch<E4M3Code, 1>;
  const auto launcher = out.dtype == DType::kE4M3 ? e4m3 : bf16;
  launcher(p, out, latent.shape[2], cuda_stream(stream));
}

}  // namespace mladcp
