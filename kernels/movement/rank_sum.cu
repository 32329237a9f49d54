#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/fast_divide.h"
#include "kernels/device/grid.h"
#include "kernels/device/vectors.cuh"
#include "kernels/movement/rank_sum.h"
#include "kernels/movement/strided_views.h"

namespace mladcp {
namespace {

constexpr int kThreads = 256;
constexpr int kMostDims = 3;  // outer dims that may stay after collapsing
constexpr int kVector = 8;
constexpr std::int64_t kMostItems = std::int64_t{1} << 30;

// Extents in vectors, strides in elements, the last dim first. strides[0] is out's.
struct RankSumParams {
  void* out;
  const void* inputs[kMostSummedRanks];
  int num_inputs;
  std::uint32_t items;
  int rank;
  FastDivisor extents[kMostDims];
  std::int64_t strides[kMostSummedRanks + 1][kMostDims];
};

template <typename Out, typename In, int kN>
__global__ void rank_sum_kernel(const __grid_constant__ RankSumParams p) {
  for (std::uint32_t item = blockIdx.x * kThreads + threadIdx.x; item < p.items;
       item += gridDim.x * kThreads) {
    std::uint32_t at[kMostDims] = {};
    std::uint32_t index = item;
#pragma unroll
    for (int dim = 0; dim < kMostDims; ++dim) {
      const std::uint32_t quotient = p.extents[dim].quotient(index);
      at[dim] = index - quotient * p.extents[dim].divisor();
      index = quotient;
    }
    const auto offset = [&](int view) {
      std::int64_t sum = 0;
#pragma unroll
      for (int dim = 0; dim < kMostDims; ++dim) sum += at[dim] * p.strides[view][dim];
      return sum;
    };
    Vector<float, kN> sum =
        convert_vector<float>(load_vector<In, kN>(static_cast<const In*>(p.inputs[0]) + offset(1)));
    for (int n = 1; n < p.num_inputs; ++n) {
      const auto addend = load_vector<In, kN>(static_cast<const In*>(p.inputs[n]) + offset(n + 1));
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] = __fadd_rn(sum[i], to_float(addend[i]));
    }
    store_vector(static_cast<Out*>(p.out) + offset(0), convert_vector<Out>(sum));
  }
}

template <typename Out, typename In>
void launch(const RankSumParams& p, bool vectors, cudaStream_t stream) {
  const unsigned blocks = grid_blocks(p.items, kThreads);
  if (vectors) {
    rank_sum_kernel<Out, In, kVector><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    rank_sum_kernel<Out, In, 1><<<blocks, kThreads, 0, stream>>>(p);
  }
  check_launch("rank_sum_kernel");
}

void expect_summable(const TensorView& out, std::span<const TensorView> inputs) {
  if (inputs.empty()) throw InvalidArgument("sum of no tensors into " + describe(out));
  if (inputs.size() > kMostSummedRanks) {
    throw Unsupported("sum of " + std::to_string(inputs.size()) + " tensors into " + describe(out) +
                      ": at most " + std::to_string(kMostSummedRanks));
  }
  const auto summable = [](DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; };
  if (!summable(out.dtype)) {
    throw InvalidArgument("sum into " + describe(out) + ": fp32 or bf16 only");
  }
  for (const TensorView& input : inputs) {
    expect_shape(input, out.shape);
    if (!summable(input.dtype) || input.dtype != inputs[0].dtype) {
      throw InvalidArgument("sum of " + describe(input) + ": inputs must all be fp32 or all bf16");
    }
  }
}

// views: out, then the inputs.
void sum_collapsed(std::span<const TensorView> views, cudaStream_t stream) {
  const bool vectors = allows_vectors(views, kVector);
  const TensorView& out = views[0];
  const std::int64_t items = out.elements() / (vectors ? kVector : 1);
  if (out.rank() > kMostDims || items > kMostItems) {
    // Rare shapes: one launch per index of the first dim.
    std::vector<TensorView> parts(views.begin(), views.end());
    for (std::int64_t i = 0; i < out.shape[0]; ++i) {
      std::transform(views.begin(), views.end(), parts.begin(), [i](const TensorView& view) {
        return view.rank() > 1 ? view.select(0, i) : view.narrow(0, i, 1);
      });
      sum_collapsed(parts, stream);
    }
    return;
  }
  RankSumParams p = {};
  p.out = out.data;
  p.num_inputs = static_cast<int>(views.size()) - 1;
  p.items = static_cast<std::uint32_t>(items);
  p.rank = out.rank();
  for (int dim = 0; dim < p.rank; ++dim) {
    const int from = p.rank - 1 - dim;
    const std::int64_t unit = vectors && dim == 0 ? kVector : 1;
    p.extents[dim] = FastDivisor(static_cast<std::uint32_t>(out.shape[from] / unit));
    for (std::size_t v = 0; v < views.size(); ++v) {
      p.strides[v][dim] = views[v].strides[from] * unit;
    }
  }
  for (int n = 0; n < p.num_inputs; ++n) p.inputs[n] = views[static_cast<std::size_t>(n) + 1].data;
  const bool wide_in = views[1].dtype == DType::kF32;
  if (out.dtype == DType::kF32) {
    wide_in ? launch<float, float>(p, vectors, stream)
            : launch<float, __nv_bfloat16>(p, vectors, stream);
  } else {
    wide_in ? launch<__nv_bfloat16, float>(p, vectors, stream)
            : launch<__nv_bfloat16, __nv_bfloat16>(p, vectors, stream);
  }
}

}  // namespace

void launch_rank_sum(const TensorView& out, std::span<const TensorView> inputs, Stream stream) {
  expect_summable(out, inputs);
  if (out.elements() == 0) return;
  std::vector<TensorView> views = {out};
  views.insert(views.end(), inputs.begin(), inputs.end());
  collapse_dims(views);
  sum_collapsed(views, cuda_stream(stream));
}

}  // namespace mladcp
