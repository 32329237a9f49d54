#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/decode/combine/combine.h"
#include "kernels/device/dependent_launch.cuh"

namespace mladcp {
namespace {

constexpr int kSlice = 128;  // dims of one warp-wide float4 load
constexpr int kSlices = kDecodeLatentRank / kSlice;

// What this CTA may have to merge. Schedule and row ranges were complete before the decode kernel
// began, so they are read before waiting for it.
struct SplitRequest {
  int request;
  int first_split;
  int num_splits;
  int rows;
};

// Candidate `i` of the grid: a request while they are few, else the part that holds split 1 of a
// request (a split request has exactly one).
__device__ __forceinline__ SplitRequest find_split_request(const DecodeParams& p, int i,
                                                           bool by_part) {
  SplitRequest r{i, 0, 0, 0};
  if (by_part) {
    if (p.parts[i].begin_request < 0 || p.parts[i].begin_split != 1) return r;
    r.request = p.parts[i].begin_request;
  }
  r.first_split = p.num_splits[r.request];
  r.num_splits = p.num_splits[r.request + 1] - r.first_split;
  r.rows = (p.row_begin[r.request + 1] - p.row_begin[r.request]) * p.num_heads;
  return r;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int lanes = 16; lanes > 0; lanes >>= 1) x = fmaxf(x, __shfl_xor_sync(~0U, x, lanes));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
  for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(~0U, x, lanes);
  return x;
}

__device__ __forceinline__ void add_scaled(float4& a, float w, const float4& v) {
  a.x = fmaf(w, v.x, a.x);
  a.y = fmaf(w, v.y, a.y);
  a.z = fmaf(w, v.z, a.z);
  a.w = fmaf(w, v.w, a.w);
}

__device__ __forceinline__ void store_bf16x4(std::uint16_t* out, const float4& v) {
  uint2 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(v.w), "f"(v.z));
  // Two stores: strides are only promised to be even.
  reinterpret_cast<std::uint32_t*>(out)[0] = packed.x;
  reinterpret_cast<std::uint32_t*>(out)[1] = packed.y;
}

constexpr float kEmpty = -__builtin_huge_valf();

// What this thread block finds to do; `row` is valid when `work` is.
struct RowWork {
  bool work;
  SplitRequest r;
  int row;
  std::int64_t split_stride;  // rows between a row's partials
  std::int64_t values;        // index of the partial of split 0
  const float* lse;
};

__device__ __forceinline__ RowWork find_row(const DecodeParams& p, bool by_part, int row) {
  RowWork w;
  w.r = find_split_request(p, blockIdx.y, by_part);
  w.row = row;
  w.work = w.r.num_splits >= 2 && row < w.r.rows;
  w.split_stride = static_cast<std::int64_t>(p.max_rows_per_request) * p.num_heads;
  const std::int64_t first = w.r.first_split * w.split_stride + row;
  w.values = first * kDecodeLatentRank;
  w.lse = p.partial_lse + first;
  return w;
}

// Four values of a partial, as they lie in memory.
template <bool kF16>
using Raw4 = std::conditional_t<kF16, uint2, float4>;

template <bool kF16>
__device__ __forceinline__ const Raw4<kF16>* value_address(const DecodeParams& p, const RowWork& w,
                                                           int split, int dim) {
  return static_cast<const Raw4<kF16>*>(p.partial_out) +
         (w.values + split * w.split_stride * kDecodeLatentRank + dim) / 4;
}
template <bool kF16>
__device__ __forceinline__ Raw4<kF16> load_value(const DecodeParams& p, const RowWork& w, int split,
                                                 int dim) {
  return __ldcg(value_address<kF16>(p, w, split, dim));
}

// Has the address translated before it is needed; the line itself may still change.
__device__ __forceinline__ void touch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ float4 widen(const float4& v) { return v; }
__device__ __forceinline__ float4 widen(const uint2& v) {
  float4 r;
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\n"
      "cvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}\n"
      : "=f"(r.x), "=f"(r.y)
      : "r"(v.x));
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\n"
      "cvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}\n"
      : "=f"(r.z), "=f"(r.w)
      : "r"(v.y));
  return r;
}

// LSEs of a chunk of splits (kWords a lane) become weights relative to the largest so far.
struct RunningMerge {
  float maximum = kEmpty;
  float weight_sum = 0.0F;

  // LSEs to weights; returns the factor for what was summed before. All lanes of a warp.
  template <int kWords>
  __device__ __forceinline__ float weigh_chunk(float (&word)[kWords]) {
    float largest = word[0];
#pragma unroll
    for (int k = 1; k < kWords; ++k) largest = fmaxf(largest, word[k]);
    largest = fmaxf(maximum, warp_max(largest));
    const float reference = largest == kEmpty ? 0.0F : largest;
#pragma unroll
    for (int k = 0; k < kWords; ++k) word[k] = __expf(word[k] - reference);
    const float scale = __expf(maximum - reference);
    maximum = largest;
    return scale;
  }
  // Adds the weights of that chunk.
  template <int kWords>
  __device__ __forceinline__ void add_chunk(const float (&word)[kWords], float scale) {
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < kWords; ++k) sum += word[k];
    weight_sum = weight_sum * scale + warp_sum(sum);
  }
  __device__ __forceinline__ float inverse(float output_scale) const {
    return weight_sum > 0.0F ? output_scale / weight_sum : 0.0F;
  }
  __device__ __forceinline__ float lse() const {
    return weight_sum > 0.0F ? maximum + __logf(weight_sum) : kEmpty;
  }
};

__device__ __forceinline__ void scale_by(float4& v, float f) {
  v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}

// Where a row of a request goes.
struct RowTarget {
  std::uint16_t* out;
  float* lse;
};
__device__ __forceinline__ RowTarget row_target(const DecodeParams& p, const RowWork& w) {
  const int token = w.row / p.num_heads;
  const int head = w.row - token * p.num_heads;
  const std::int64_t t = p.row_begin[w.r.request] + token;
  return {static_cast<std::uint16_t*>(p.out) + t * p.out_row_stride + head * p.out_head_stride,
          p.lse + t * p.lse_row_stride + head * p.lse_head_stride};
}

// Few rows, many splits: a block takes kSliceCount slices of 128 dims of one row, each of its 16
// warps every 16th split. The LSEs of a row lie far apart, so one warp reads them for all.
constexpr int kDeepWarps = 16;
constexpr int kDeepAhead = 9;
constexpr int kDeepChunk = kDeepWarps * kDeepAhead;

template <bool kF16, int kSliceCount>
__global__ void __launch_bounds__(kDeepWarps * 32, 2)
    combine_deep_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  __shared__ float weight[kDeepChunk];
  __shared__ float rescale;
  __shared__ float4 part[kDeepWarps][kSliceCount][32];
  constexpr int kBlocksPerRow = kSlices / kSliceCount;
  allow_dependent_grid();
  const RowWork w = find_row(p, by_part, blockIdx.x / kBlocksPerRow);
  if (!w.work) {
    // One block of the grid always waits: otherwise a grid with nothing to merge could complete
    // before the decode kernel does, and what follows on the stream would overtake that.
    if (blockIdx.x == 0 && blockIdx.y == 0) wait_for_upstream_grid();
    return;
  }
  const RowTarget target = row_target(p, w);
  const int warp = threadIdx.x >> 5;
  const int lane = threadIdx.x & 31;
  const int dim = blockIdx.x % kBlocksPerRow * (kSlice * kSliceCount) + lane * 4;
  touch(value_address<kF16>(p, w, min(warp, w.r.num_splits - 1), dim));
  if (warp == 0) touch(w.lse + min(lane, w.r.num_splits - 1) * w.split_stride);
  if (warp == 0) touch(target.out + dim);
  wait_for_upstream_grid();

  RunningMerge merge;
  float4 sum[kSliceCount] = {};
  for (int base = 0; base < w.r.num_splits; base += kDeepChunk) {
    const int count = min(kDeepChunk, w.r.num_splits - base);
    constexpr int kWords = (kDeepChunk + 31) / 32;
    float word[kWords];
    if (warp == 0) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int s = 32 * k + lane;
        word[k] = s < count ? __ldcg(w.lse + (base + s) * w.split_stride) : kEmpty;
      }
    }
    Raw4<kF16> value[kDeepAhead][kSliceCount];
#pragma unroll
    for (int i = 0; i < kDeepAhead; ++i) {
      const int s = warp + kDeepWarps * i;
#pragma unroll
      for (int c = 0; c < kSliceCount; ++c) {
        if (s < count) value[i][c] = load_value<kF16>(p, w, base + s, dim + c * kSlice);
      }
    }
    float scale = 0.0F;
    if (warp == 0) {
      scale = merge.weigh_chunk(word);
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (32 * k + lane < kDeepChunk) weight[32 * k + lane] = word[k];
      }
      if (lane == 0) rescale = scale;
    }
    __syncthreads();
    if (warp == 0) merge.add_chunk(word, scale);
#pragma unroll
    for (int c = 0; c < kSliceCount; ++c) {
      if (base > 0) scale_by(sum[c], rescale);
#pragma unroll
      for (int i = 0; i < kDeepAhead; ++i) {
        const int s = warp + kDeepWarps * i;
        if (s < count) add_scaled(sum[c], weight[s], widen(value[i][c]));
      }
    }
    if (base + kDeepChunk < w.r.num_splits) __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < kSliceCount; ++c) part[warp][c][lane] = sum[c];
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int c = 0; c < kSliceCount; ++c) {
#pragma unroll
    for (int i = 1; i < kDeepWarps; ++i) add_scaled(sum[c], 1.0F, part[i][c][lane]);
    scale_by(sum[c], merge.inverse(kF16 ? p.output_scale : 1.0F));
    store_bf16x4(target.out + dim + c * kSlice, sum[c]);
  }
  if (dim == 0) *target.lse = merge.lse();
}

// A warp takes kSliceCount slices of 128 dims of a row, with kAhead splits in flight.
constexpr int kRowWarps = 8;
template <bool kF16, int kSliceCount, int kAhead>
__device__ __forceinline__ void combine_rows(const DecodeParams& p, bool by_part) {
  static_assert(32 % kAhead == 0);
  constexpr int kWarpsPerRow = kSlices / kSliceCount;
  allow_dependent_grid();
  const int unit = blockIdx.x * kRowWarps + (threadIdx.x >> 5);
  const RowWork w = find_row(p, by_part, unit / kWarpsPerRow);
  if (!w.work) {
    if (blockIdx.x == 0 && blockIdx.y == 0) wait_for_upstream_grid();  // as above
    return;
  }
  const RowTarget target = row_target(p, w);
  const int lane = threadIdx.x & 31;
  const int dim = unit % kWarpsPerRow * (kSlice * kSliceCount) + lane * 4;
  touch(value_address<kF16>(p, w, 0, dim));
  touch(w.lse + min(lane, w.r.num_splits - 1) * w.split_stride);
  touch(target.out + dim);
  wait_for_upstream_grid();

  RunningMerge merge;
  float4 sum[kSliceCount] = {};
  for (int base = 0; base < w.r.num_splits; base += 32) {
    const int count = min(32, w.r.num_splits - base);
    float word[1] = {lane < count ? __ldcg(w.lse + (base + lane) * w.split_stride) : kEmpty};
#pragma unroll 1
    for (int group = 0; group < count; group += kAhead) {
      Raw4<kF16> value[kAhead][kSliceCount];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int c = 0; c < kSliceCount; ++c) {
          if (group + i < count) {
            value[i][c] = load_value<kF16>(p, w, base + group + i, dim + c * kSlice);
          }
        }
      }
      if (group == 0) {
        const float scale = merge.weigh_chunk(word);
        merge.add_chunk(word, scale);
#pragma unroll
        for (int c = 0; c < kSliceCount; ++c) scale_by(sum[c], scale);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float weight = __shfl_sync(~0U, word[0], group + i);
#pragma unroll
        for (int c = 0; c < kSliceCount; ++c) {
          if (group + i < count) add_scaled(sum[c], weight, widen(value[i][c]));
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kSliceCount; ++c) {
    scale_by(sum[c], merge.inverse(kF16 ? p.output_scale : 1.0F));
    store_bf16x4(target.out + dim + c * kSlice, sum[c]);
  }
  if (dim == 0) *target.lse = merge.lse();
}

template <bool kF16>
__global__ void __launch_bounds__(kRowWarps * 32, 3)
    combine_medium_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  combine_rows<kF16, kF16 ? 2 : 1, 8>(p, by_part);
}
template <bool kF16>
__global__ void __launch_bounds__(kRowWarps * 32, 3)
    combine_wide_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  combine_rows<kF16, kSlices, kF16 ? 4 : 2>(p, by_part);
}

using CombineKernel = void (*)(DecodeParams, bool);

struct Combine {
  CombineKernel kernel;
  int threads;
  int blocks;  // for the rows of one request
};

// `depth`: splits of an average request.
template <bool kF16>
Combine choose_combine(int depth, int rows) {
  const auto row_blocks = [](int warps) { return (warps + kRowWarps - 1) / kRowWarps; };
  if (depth < 4) return {combine_wide_kernel<kF16>, 32 * kRowWarps, row_blocks(rows)};
  if (depth < 24) {
    return {combine_medium_kernel<kF16>, 32 * kRowWarps,
            row_blocks(rows * (kF16 ? kSlices / 2 : kSlices))};
  }
  // More blocks for few rows, larger ones where all of them together fill the card anyway.
  if constexpr (kF16) {
    if (rows > 32) return {combine_deep_kernel<kF16, 2>, 32 * kDeepWarps, rows * kSlices / 2};
  }
  return {combine_deep_kernel<kF16, 1>, 32 * kDeepWarps, rows * kSlices};
}

// A grid that one block a multiprocessor holds gets so much shared memory that no two blocks share
// one: they would share its way to L2 as well, while others idle.
void spread_over_card(cudaLaunchConfig_t& config, CombineKernel kernel) {
  const auto attribute = [](cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    check_cuda(cudaGetDevice(&device), "decode_combine");
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "decode_combine");
    return value;
  };
  const auto processors = static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount));
  if (config.gridDim.x * config.gridDim.y > processors) return;
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "decode_combine");
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
}

}  // namespace

void launch_decode_combine(const DecodeParams& p, cudaStream_t stream) {
  if (p.num_requests == 0 || p.num_parts < 2) return;
  const bool by_part = p.num_requests > p.num_parts;
  const int candidates = std::min(p.num_requests, p.num_parts);
  const int rows = p.max_rows_per_request * p.num_heads;
  // Splits of an average request.
  const int depth = (p.num_requests + p.num_parts) / p.num_requests;
  const Combine combine =
      p.f16_partials ? choose_combine<true>(depth, rows) : choose_combine<false>(depth, rows);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(combine.blocks), static_cast<unsigned>(candidates));
  config.blockDim = dim3(static_cast<unsigned>(combine.threads));
  config.stream = stream;
  spread_over_card(config, combine.kernel);
  launch_dependent("decode_combine", config, combine.kernel, p, by_part);
}

}  // namespace mladcp
