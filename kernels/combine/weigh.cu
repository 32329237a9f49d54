// mask_empty and correct: one rank's own partial.
#include "core/lse_merge.h"
#include "kernels/combine/combine_kernels.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/device/row_tiles.cuh"
#include "kernels/device/vectors.cuh"

namespace mladcp {
namespace {

struct MaskEmptyParams {
  __nv_bfloat16* out;
  float* lse;
  const std::int32_t* visible;
  std::int64_t rows;  // T * H
  std::int64_t heads;
  std::int64_t out_strides[2];
  std::int64_t lse_strides[2];
  FastDivisor chunks_per_row;
};

template <int kN>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    mask_empty_kernel(const __grid_constant__ MaskEmptyParams p) {
  using Zeros = Vector<__nv_bfloat16, kN>;
  struct Row {
    __nv_bfloat16* out;  // null: the row sees something
  };
  for_each_chunk<Row>(
      p.rows, p.chunks_per_row,
      [&](std::int64_t row) {
        const std::int64_t t = row / p.heads;
        const std::int64_t h = row % p.heads;
        if (p.visible[t] > 0) return Row{nullptr};
        p.lse[t * p.lse_strides[0] + h * p.lse_strides[1]] = kEmptyLse;
        return Row{p.out + t * p.out_strides[0] + h * p.out_strides[1]};
      },
      [](const Row&, std::uint32_t) { return Zeros{}; },
      [](const Row& row, std::uint32_t chunk, const Zeros& zeros) {
        if (row.out != nullptr) store_vector(row.out + chunk * kN, zeros);
      });
}

struct CorrectParams {
  void* out;
  const void* in;
  const float* lses;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t out_strides[2];
  std::int64_t in_strides[2];
  std::int64_t lse_strides[3];  // of rank, t, h
  int ranks;
  int rank;
  FastDivisor chunks_per_row;
};

template <typename Out, typename In, int kN>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    correct_kernel(const __grid_constant__ CorrectParams p) {
  struct Row {
    const In* in;
    Out* out;
    float weight;
  };
  for_each_chunk<Row>(
      p.rows, p.chunks_per_row,
      [&](std::int64_t row) {
        const std::int64_t t = row / p.heads;
        const std::int64_t h = row % p.heads;
        const float* lse = p.lses + t * p.lse_strides[1] + h * p.lse_strides[2];
        const LseMerge merge(p.ranks, [&](int n) { return lse[n * p.lse_strides[0]]; });
        return Row{static_cast<const In*>(p.in) + t * p.in_strides[0] + h * p.in_strides[1],
                   static_cast<Out*>(p.out) + t * p.out_strides[0] + h * p.out_strides[1],
                   merge.weight(lse[p.rank * p.lse_strides[0]])};
      },
      [](const Row& row, std::uint32_t chunk) { return load_vector<In, kN>(row.in + chunk * kN); },
      [](const Row& row, std::uint32_t chunk, const Vector<In, kN>& values) {
        Vector<Out, kN> out;
#pragma unroll
        for (int i = 0; i < kN; ++i)
          out[i] = from_float<Out>(weighted(row.weight, to_float(values[i])));
        store_vector(row.out + chunk * kN, out);
      });
}

template <typename Out, typename In>
void launch_typed(CorrectParams p, std::int64_t width, bool vectors, cudaStream_t stream) {
  const unsigned blocks = grid_blocks(p.rows, kTileRows);
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(vectors ? width / 8 : width));
  if (vectors) {
    correct_kernel<Out, In, 8><<<blocks, kTileThreads, 0, stream>>>(p);
  } else {
    correct_kernel<Out, In, 1><<<blocks, kTileThreads, 0, stream>>>(p);
  }
  check_launch("correct_kernel");
}

}  // namespace

void launch_mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                       Stream stream) {
  if (lse.elements() == 0) return;
  MaskEmptyParams p = {};
  p.out = out.as<__nv_bfloat16>();
  p.lse = lse.as<float>();
  p.visible = visible.as<const std::int32_t>();
  p.rows = lse.elements();
  p.heads = lse.shape[1];
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = out.strides[dim];
    p.lse_strides[dim] = lse.strides[dim];
  }
  const std::int64_t width = out.shape[2];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({out}, 8);
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(vectors ? width / 8 : width));
  const unsigned blocks = grid_blocks(p.rows, kTileRows);
  const cudaStream_t cuda = cuda_stream(stream);
  if (vectors) {
    mask_empty_kernel<8><<<blocks, kTileThreads, 0, cuda>>>(p);
  } else {
    mask_empty_kernel<1><<<blocks, kTileThreads, 0, cuda>>>(p);
  }
  check_launch("mask_empty_kernel");
}

void launch_correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
                    int rank, Stream stream) {
  if (corrected.elements() == 0) return;
  CorrectParams p = {};
  p.out = corrected.data;
  p.in = partial.data;
  p.lses = lses.as<const float>();
  p.rows = partial.shape[0] * partial.shape[1];
  p.heads = partial.shape[1];
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = corrected.strides[dim];
    p.in_strides[dim] = partial.strides[dim];
  }
  for (int dim = 0; dim < 3; ++dim) p.lse_strides[dim] = lses.strides[dim];
  p.ranks = static_cast<int>(lses.shape[0]);
  p.rank = rank;
  const std::int64_t width = partial.shape[2];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({corrected, partial}, 8);
  const bool wide_in = partial.dtype == DType::kF32;
  const cudaStream_t cuda = cuda_stream(stream);
  if (corrected.dtype == DType::kF32) {
    wide_in ? launch_typed<float, float>(p, width, vectors, cuda)
            : launch_typed<float, __nv_bfloat16>(p, width, vectors, cuda);
  } else {
    wide_in ? launch_typed<__nv_bfloat16, float>(p, width, vectors, cuda)
            : launch_typed<__nv_bfloat16, __nv_bfloat16>(p, width, vectors, cuda);
  }
}

}  // namespace mladcp
