// mask_empty and correct: one rank's own partial.
#include "core/lse_merge.h"
#include "kernels/combine/combine_kernels.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/fast_divide.h"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/device/vectors.cuh"

namespace mladcp {
namespace {

constexpr int kWarps = 4;  // of a block; each works for itself
constexpr int kThreads = 32 * kWarps;

struct MaskEmptyParams {
  __nv_bfloat16* out;
  float* lse;
  const std::int32_t* visible;
  std::int64_t rows;  // T * H
  WideDivisor heads;
  std::int64_t out_strides[2];
  std::int64_t lse_strides[2];
  std::int64_t chunks_per_row;
};

// A lane looks at a row; where it is empty, the warp clears it together.
template <int kN>
__global__ void __launch_bounds__(kThreads)
    mask_empty_kernel(const __grid_constant__ MaskEmptyParams p) {
  wait_for_upstream_grid();
  allow_dependent_grid();
  const unsigned lane = threadIdx.x % 32;
  const auto step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + (threadIdx.x - lane);
       first < p.rows; first += step) {
    const std::int64_t row = first + lane;
    const std::int64_t t = p.heads.quotient(row);
    const std::int64_t h = row - t * p.heads.divisor();
    const bool empty = row < p.rows && p.visible[t] <= 0;
    if (empty) p.lse[t * p.lse_strides[0] + h * p.lse_strides[1]] = kEmptyLse;
    for (unsigned left = __ballot_sync(~0U, empty); left != 0; left &= left - 1) {
      const std::int64_t cleared = first + (__ffs(static_cast<int>(left)) - 1);
      const std::int64_t token = p.heads.quotient(cleared);
      const std::int64_t head = cleared - token * p.heads.divisor();
      __nv_bfloat16* out = p.out + token * p.out_strides[0] + head * p.out_strides[1];
      for (std::int64_t chunk = lane; chunk < p.chunks_per_row; chunk += 32) {
        store_vector(out + chunk * kN, Vector<__nv_bfloat16, kN>{});
      }
    }
  }
}

struct CorrectParams {
  void* out;
  const void* in;
  const float* lses;
  std::int64_t rows;  // T * H
  WideDivisor heads;
  std::int64_t out_strides[2];
  std::int64_t in_strides[2];
  std::int64_t lse_strides[3];  // of rank, t, h
  int ranks;
  int rank;
  int chunks_per_row;
};

constexpr int kCorrectRows = 4;  // of a warp at a time

// kN values as they lie in memory: taken apart, 16-bit ones would fill a register each.
template <typename T, int kN>
using Packed = std::conditional_t<kN == 1, Vector<T, 1>, Vector<std::uint32_t, sizeof(T) * kN / 4>>;

template <typename T, int kN>
__device__ Packed<T, kN> load_packed(const T* address) {
  using Word = std::conditional_t<kN == 1, T, std::uint32_t>;
  return load_vector<Word, sizeof(Packed<T, kN>) / sizeof(Word)>(
      reinterpret_cast<const Word*>(address));
}

__device__ void convert_pair(float* to, const float* from) {
  to[0] = from[0];
  to[1] = from[1];
}
__device__ void convert_pair(__nv_bfloat16* to, const float* from) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(from[0], from[1]);
}

// weighted() of each value; the weight is the row's, so its test is made once.
template <typename Out, typename In, int kN>
__device__ Vector<Out, kN> weighted_vector(float weight, const Packed<In, kN>& packed) {
  Vector<In, kN> values;
  memcpy(&values, &packed, sizeof values);
  Vector<Out, kN> result{};
  if (weight == 0.0F) return result;
  if constexpr (kN == 1) {
    result[0] = from_float<Out>(weighted(weight, to_float(values[0])));
  } else {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      const float pair[] = {weighted(weight, to_float(values[i])),
                            weighted(weight, to_float(values[i + 1]))};
      convert_pair(&result[i], pair);
    }
  }
  return result;
}

// Where a warp's rows are, from `first` on.
template <typename Out, typename In>
struct RowAddresses {
  const In* in[kCorrectRows];
  Out* out[kCorrectRows];

  __device__ RowAddresses(const CorrectParams& p, std::int64_t first) {
    const std::int64_t t = p.heads.quotient(first);
    std::int64_t h = first - t * p.heads.divisor();
    const In* from = static_cast<const In*>(p.in) + t * p.in_strides[0] + h * p.in_strides[1];
    Out* to = static_cast<Out*>(p.out) + t * p.out_strides[0] + h * p.out_strides[1];
#pragma unroll
    for (int r = 0; r < kCorrectRows; ++r) {
      in[r] = from;
      out[r] = to;
      from += p.in_strides[1];
      to += p.out_strides[1];
      if (++h < p.heads.divisor()) continue;
      h = 0;
      from += p.in_strides[0] - p.heads.divisor() * p.in_strides[1];
      to += p.out_strides[0] - p.heads.divisor() * p.out_strides[1];
    }
  }
};

// LSEs of a warp's rows: lane l looks after row l % kCorrectRows, with the other lanes of that row.
class RowWeights {
 public:
  // Starts the first loads: those of the rows' values come behind them.
  __device__ RowWeights(const CorrectParams& p, std::int64_t first, int count)
      : own_(static_cast<int>(threadIdx.x % 32) % kCorrectRows), exists_(own_ < count) {
    if (!exists_) return;
    const std::int64_t t = p.heads.quotient(first + own_);
    const std::int64_t h = first + own_ - t * p.heads.divisor();
    lse_ = p.lses + t * p.lse_strides[1] + h * p.lse_strides[2];
    if (first_rank() < p.ranks) loaded_ = lse_[first_rank() * p.lse_strides[0]];
  }

  // The weight of this lane's row. lses: [ranks][rows], shared memory of the warp.
  __device__ float find(const CorrectParams& p, float* lses) const {
    float weight = 0.0F;
    if (exists_ && first_rank() < p.ranks) {
      lses[first_rank() * kCorrectRows + own_] = loaded_;
      for (int n = first_rank() + kLanesPerRow; n < p.ranks; n += kLanesPerRow) {
        lses[n * kCorrectRows + own_] = lse_[n * p.lse_strides[0]];
      }
    }
    __syncwarp();
    if (exists_) {
      const LseMerge merge(p.ranks, [&](int n) { return lses[n * kCorrectRows + own_]; });
      weight = merge.weight(lses[p.rank * kCorrectRows + own_]);
    }
    __syncwarp();  // the next rows' may come
    return weight;
  }

 private:
  static constexpr int kLanesPerRow = 32 / kCorrectRows;
  __device__ int first_rank() const { return static_cast<int>(threadIdx.x % 32) / kCorrectRows; }

  int own_;
  bool exists_;
  const float* lse_ = nullptr;  // of the own row, rank 0
  float loaded_ = 0.0F;
};

// A warp takes a few rows. Their values are under way while their weights are found.
template <typename Out, typename In, int kN>
__global__ void __launch_bounds__(kThreads, 4)
    correct_kernel(const __grid_constant__ CorrectParams p) {
  constexpr int kAhead = sizeof(In) * kN > 16 ? 1 : 2;  // chunks of a row in flight a lane
  __shared__ float lses[kWarps][kMostMergedRanks * kCorrectRows];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto step = std::int64_t{gridDim.x} * (kWarps * kCorrectRows);
  bool waited = false;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + warp) * kCorrectRows;
       first < p.rows; first += step) {
    const RowAddresses<Out, In> rows(p, first);
    const int count =
        static_cast<int>(p.rows - first < kCorrectRows ? p.rows - first : kCorrectRows);
    if (!waited) {
      wait_for_upstream_grid();
      allow_dependent_grid();
      waited = true;
    }
    const RowWeights weights(p, first, count);
    float weight = 0.0F;
    for (int base = lane; base - lane < p.chunks_per_row; base += 32 * kAhead) {
      Packed<In, kN> values[kCorrectRows][kAhead];
      const auto exists = [&](int r, int k) {
        return r < count && base + 32 * k < p.chunks_per_row;
      };
#pragma unroll
      for (int r = 0; r < kCorrectRows; ++r) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (exists(r, k)) values[r][k] = load_packed<In, kN>(rows.in[r] + (base + 32 * k) * kN);
        }
      }
      if (base == lane) weight = weights.find(p, lses[warp]);
#pragma unroll
      for (int r = 0; r < kCorrectRows; ++r) {
        const float of_row = __shfl_sync(~0U, weight, r);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (!exists(r, k)) continue;
          store_vector(rows.out[r] + (base + 32 * k) * kN,
                       weighted_vector<Out, In, kN>(of_row, values[r][k]));
        }
      }
    }
  }
}

template <typename Out, typename In>
void launch_typed(CorrectParams p, std::int64_t width, bool vectors, cudaStream_t stream) {
  p.chunks_per_row = static_cast<int>(vectors ? width / 8 : width);
  const auto kernel = vectors ? correct_kernel<Out, In, 8> : correct_kernel<Out, In, 1>;
  launch_dependent("correct_kernel", kernel, grid_blocks(p.rows, kWarps * kCorrectRows), kThreads,
                   0, stream, p);
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
  p.heads = WideDivisor(lse.shape[1], p.rows);
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = out.strides[dim];
    p.lse_strides[dim] = lse.strides[dim];
  }
  const std::int64_t width = out.shape[2];
  const bool vectors = width % 8 == 0 && rows_allow_vectors({out}, 8);
  p.chunks_per_row = vectors ? width / 8 : width;
  launch_dependent("mask_empty_kernel", vectors ? mask_empty_kernel<8> : mask_empty_kernel<1>,
                   grid_blocks(p.rows, kThreads), kThreads, 0, cuda_stream(stream), p);
}

void launch_correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
                    int rank, Stream stream) {
  if (corrected.elements() == 0) return;
  CorrectParams p = {};
  p.out = corrected.data;
  p.in = partial.data;
  p.lses = lses.as<const float>();
  p.rows = partial.shape[0] * partial.shape[1];
  p.heads = WideDivisor(partial.shape[1], p.rows);
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
