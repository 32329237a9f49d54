// merge and merge_into: several partials become one, in fp32.
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

constexpr int kThreads = 256;

struct MergeParams {
  void* out;
  float* lse;
  const void* partials;
  const float* lses;
  std::int64_t rows;  // T * H
  std::int64_t heads;
  std::int64_t out_strides[2];
  std::int64_t lse_strides[2];
  std::int64_t partial_strides[3];  // of rank, t, h
  std::int64_t lses_strides[3];
  int ranks;
  std::int64_t chunks_per_row;
};

// Every chunk works out its row's weights again: N exponentials beside N vectors of loads.
template <typename Out, typename In, int kN>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeParams p) {
  const std::int64_t items = p.rows * p.chunks_per_row;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; item < items;
       item += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = item / p.chunks_per_row;
    const std::int64_t chunk = item % p.chunks_per_row;
    const std::int64_t t = row / p.heads;
    const std::int64_t h = row % p.heads;
    const float* lse = p.lses + t * p.lses_strides[1] + h * p.lses_strides[2];
    const LseMerge merge(p.ranks, [&](int n) { return lse[n * p.lses_strides[0]]; });
    const In* partial = static_cast<const In*>(p.partials) + t * p.partial_strides[1] +
                        h * p.partial_strides[2] + chunk * kN;
    Vector<float, kN> sum = {};
#pragma unroll 4
    for (int n = 0; n < p.ranks; ++n) {
      const auto values = load_vector<In, kN>(partial + n * p.partial_strides[0]);
      const float weight = merge.weight(lse[n * p.lses_strides[0]]);
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += weighted(weight, to_float(values[i]));
    }
    store_vector(
        static_cast<Out*>(p.out) + t * p.out_strides[0] + h * p.out_strides[1] + chunk * kN,
        convert_vector<Out>(sum));
    if (chunk == 0) p.lse[t * p.lse_strides[0] + h * p.lse_strides[1]] = merge.lse();
  }
}

struct MergeIntoParams {
  float* running;
  float* running_lse;
  const float* partial;
  const float* partial_lse;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t running_strides[2];
  std::int64_t running_lse_strides[2];
  std::int64_t partial_strides[2];
  std::int64_t partial_lse_strides[2];
  FastDivisor chunks_per_row;
};

template <int kN>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    merge_into_kernel(const __grid_constant__ MergeIntoParams p) {
  struct Row {
    float* running;  // null: the partial is empty, nothing changes
    const float* partial;
    float running_weight;
    float partial_weight;
  };
  struct Pair {
    Vector<float, kN> running;
    Vector<float, kN> partial;
  };
  for_each_chunk<Row>(
      p.rows, p.chunks_per_row,
      [&](std::int64_t row) {
        const std::int64_t t = row / p.heads;
        const std::int64_t h = row % p.heads;
        const float partial_lse =
            p.partial_lse[t * p.partial_lse_strides[0] + h * p.partial_lse_strides[1]];
        if (is_empty_lse(partial_lse)) return Row{nullptr, nullptr, 0.0F, 0.0F};
        float& running_lse =
            p.running_lse[t * p.running_lse_strides[0] + h * p.running_lse_strides[1]];
        const float lses[2] = {running_lse, partial_lse};
        const LseMerge merge(2, [&](int n) { return lses[n]; });
        running_lse = merge.lse();
        return Row{p.running + t * p.running_strides[0] + h * p.running_strides[1],
                   p.partial + t * p.partial_strides[0] + h * p.partial_strides[1],
                   merge.weight(lses[0]), merge.weight(lses[1])};
      },
      [](const Row& row, std::uint32_t chunk) {
        if (row.running == nullptr) return Pair{};
        return Pair{load_vector<float, kN>(row.running + chunk * kN),
                    load_vector<float, kN>(row.partial + chunk * kN)};
      },
      [](const Row& row, std::uint32_t chunk, const Pair& pair) {
        if (row.running == nullptr) return;
        Vector<float, kN> out;
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          out[i] = weighted(row.running_weight, pair.running[i]) +
                   weighted(row.partial_weight, pair.partial[i]);
        }
        store_vector(row.running + chunk * kN, out);
      });
}

template <typename Out, typename In>
void launch_typed(MergeParams p, std::int64_t width, bool vectors, cudaStream_t stream) {
  p.chunks_per_row = vectors ? width / 8 : width;
  const unsigned blocks = grid_blocks(p.rows * p.chunks_per_row, kThreads);
  if (vectors) {
    merge_kernel<Out, In, 8><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    merge_kernel<Out, In, 1><<<blocks, kThreads, 0, stream>>>(p);
  }
  check_launch("merge_kernel");
}

}  // namespace

void launch_merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
                  const TensorView& lses, Stream stream) {
  if (lse.elements() == 0) return;
  MergeParams p = {};
  p.out = out.data;
  p.lse = lse.as<float>();
  p.partials = partials.data;
  p.lses = lses.as<const float>();
  p.rows = lse.elements();
  p.heads = lse.shape[1];
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = out.strides[dim];
    p.lse_strides[dim] = lse.strides[dim];
  }
  for (int dim = 0; dim < 3; ++dim) {
    p.partial_strides[dim] = partials.strides[dim];
    p.lses_strides[dim] = lses.strides[dim];
  }
  p.ranks = static_cast<int>(lses.shape[0]);
  const std::int64_t width = out.shape[2];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({out, partials}, 8);
  const bool wide_in = partials.dtype == DType::kF32;
  const cudaStream_t cuda = cuda_stream(stream);
  if (out.dtype == DType::kF32) {
    wide_in ? launch_typed<float, float>(p, width, vectors, cuda)
            : launch_typed<float, __nv_bfloat16>(p, width, vectors, cuda);
  } else {
    wide_in ? launch_typed<__nv_bfloat16, float>(p, width, vectors, cuda)
            : launch_typed<__nv_bfloat16, __nv_bfloat16>(p, width, vectors, cuda);
  }
}

void launch_merge_into(const TensorView& running, const TensorView& running_lse,
                       const TensorView& partial, const TensorView& partial_lse, Stream stream) {
  if (running_lse.elements() == 0) return;
  MergeIntoParams p = {};
  p.running = running.as<float>();
  p.running_lse = running_lse.as<float>();
  p.partial = partial.as<const float>();
  p.partial_lse = partial_lse.as<const float>();
  p.rows = running_lse.elements();
  p.heads = running_lse.shape[1];
  for (int dim = 0; dim < 2; ++dim) {
    p.running_strides[dim] = running.strides[dim];
    p.running_lse_strides[dim] = running_lse.strides[dim];
    p.partial_strides[dim] = partial.strides[dim];
    p.partial_lse_strides[dim] = partial_lse.strides[dim];
  }
  const std::int64_t width = running.shape[2];
  const bool vectors = width % 4 == 0 && rows_allow_vectors({running, partial}, 4);
  p.chunks_per_row = FastDivisor(static_cast<std::uint32_t>(vectors ? width / 4 : width));
  const unsigned blocks = grid_blocks(p.rows, kTileRows);
  const cudaStream_t cuda = cuda_stream(stream);
  if (vectors) {
    merge_into_kernel<4><<<blocks, kTileThreads, 0, cuda>>>(p);
  } else {
    merge_into_kernel<1><<<blocks, kTileThreads, 0, cuda>>>(p);
  }
  check_launch("merge_into_kernel");
}

}  // namespace mladcp
