#include <algorithm>
#include <string>

#include "kernels/decode/combine/combine.h"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

constexpr int kSlice = 128;  // dims of one warp-wide float4 load
constexpr int kSlices = kDecodeLatentRank / kSlice;

__device__ __forceinline__ void wait_for_upstream_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_dependent_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

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

// kSplitWarps warps share the splits of one row; a warp takes kSliceCount slices of 128 dims and
// has kAhead splits in flight.
template <int kSplitWarps, int kSliceCount, int kAhead>
struct Shape {
  static constexpr int kWarps = kSplitWarps > 1 ? kSplitWarps : 8;
  static constexpr int kRowWarps = kSlices / kSliceCount;    // warps (or CTAs) a row
  static constexpr int kGroup = kSplitWarps * kAhead;        // splits in flight
  static constexpr int kLseWords = kSplitWarps > 1 ? 5 : 1;  // LSEs of a chunk in a lane
  static constexpr int kChunk = 32 * kLseWords;
  static_assert(kSplitWarps == 1 ? 32 % kAhead == 0 : kSplitWarps == 16 && kChunk % kGroup == 0);
};
using Deep = Shape<16, 1, 5>;  // few rows, many splits
using Medium = Shape<1, 1, 8>;
using Wide = Shape<1, 4, 2>;  // many rows, two or three splits

template <class S, int kSplitWarps, int kSliceCount, int kAhead>
__device__ __forceinline__ void combine_rows(const DecodeParams& p, bool by_part) {
  allow_dependent_grid();
  const SplitRequest r = find_split_request(p, blockIdx.y, by_part);
  const int warp = threadIdx.x >> 5;
  const int lane = threadIdx.x & 31;
  const int unit = kSplitWarps > 1 ? blockIdx.x : blockIdx.x * S::kWarps + warp;
  const int row = unit / S::kRowWarps;
  const int slice = unit % S::kRowWarps;
  if (r.num_splits < 2 || row >= r.rows) {
    // One block of the grid always waits: otherwise a grid with nothing to merge could complete
    // before the decode kernel does, and what follows on the stream would overtake that.
    if (blockIdx.x == 0 && blockIdx.y == 0) wait_for_upstream_grid();
    return;
  }
  const std::int64_t rows_per_split =
      static_cast<std::int64_t>(p.max_rows_per_request) * p.num_heads;
  const std::int64_t first_row = r.first_split * rows_per_split + row;
  const float* source = p.partial_out + first_row * kDecodeLatentRank + slice * kSlice + lane * 4;
  const float* lse = p.partial_lse + first_row;
  const int share = kSplitWarps > 1 ? warp : 0;  // this warp's splits: share, share + kSplitWarps..
  constexpr float kEmpty = -__builtin_huge_valf();
  wait_for_upstream_grid();

  float4 sum[kSliceCount] = {};
  float maximum = kEmpty;
  float weight_sum = 0.0F;
  for (int base = 0; base < r.num_splits; base += S::kChunk) {
    float word[S::kLseWords];
#pragma unroll
    for (int k = 0; k < S::kLseWords; ++k) {
      const int s = base + 32 * k + lane;
      word[k] = s < r.num_splits ? __ldcg(lse + s * rows_per_split) : kEmpty;
    }
#pragma unroll(kSplitWarps > 1 ? S::kChunk / S::kGroup : 1)
    for (int group = 0; group < S::kChunk; group += S::kGroup) {
      if (base + group >= r.num_splits) break;
      float4 value[kAhead][kSliceCount];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int s = base + group + share + kSplitWarps * i;
        if (s < r.num_splits) {
#pragma unroll
          for (int c = 0; c < kSliceCount; ++c) {
            value[i][c] = __ldcg(reinterpret_cast<const float4*>(
                source + s * rows_per_split * kDecodeLatentRank + c * kSlice));
          }
        }
      }
      if (group == 0) {
        // The chunk's LSEs become weights relative to the maximum so far.
        float chunk_max = word[0];
#pragma unroll
        for (int k = 1; k < S::kLseWords; ++k) chunk_max = fmaxf(chunk_max, word[k]);
        chunk_max = fmaxf(maximum, warp_max(chunk_max));
        const float reference = chunk_max == kEmpty ? 0.0F : chunk_max;
        float chunk_sum = 0.0F;
#pragma unroll
        for (int k = 0; k < S::kLseWords; ++k) {
          word[k] = __expf(word[k] - reference);
          chunk_sum += word[k];
        }
        const float scale = __expf(maximum - reference);
        weight_sum = weight_sum * scale + warp_sum(chunk_sum);
        maximum = chunk_max;
#pragma unroll
        for (int c = 0; c < kSliceCount; ++c) {
          sum[c] =
              make_float4(sum[c].x * scale, sum[c].y * scale, sum[c].z * scale, sum[c].w * scale);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int s = base + group + share + kSplitWarps * i;
        // Split group + 16 i + share of a chunk is in word (group + 16 i) / 32; with one warp a row
        // all 32 are in word 0.
        const float own = kSplitWarps > 1 ? word[(group + 16 * i) / 32] : word[0];
        const int from = kSplitWarps > 1 ? (group + 16 * i) % 32 + share : group + i;
        const float w = __shfl_sync(~0U, own, from);
        if (s < r.num_splits) {
#pragma unroll
          for (int c = 0; c < kSliceCount; ++c) {
            add_scaled(sum[c], w, value[i][c]);
          }
        }
      }
    }
  }

  if constexpr (kSplitWarps > 1) {
    __shared__ float4 partial_sums[S::kWarps][32];
    partial_sums[warp][lane] = sum[0];
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int w = 1; w < S::kWarps; ++w) add_scaled(sum[0], 1.0F, partial_sums[w][lane]);
  }
  const float inverse = weight_sum > 0.0F ? 1.0F / weight_sum : 0.0F;
  const int token = row / p.num_heads;
  const int head = row - token * p.num_heads;
  const std::int64_t t = p.row_begin[r.request] + token;
  std::uint16_t* out = static_cast<std::uint16_t*>(p.out) + t * p.out_row_stride +
                       head * p.out_head_stride + slice * kSlice + lane * 4;
#pragma unroll
  for (int c = 0; c < kSliceCount; ++c) {
    const float4 v = sum[c];
    store_bf16x4(out + c * kSlice,
                 make_float4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse));
  }
  if (slice == 0 && lane == 0) {
    p.lse[t * p.lse_row_stride + head * p.lse_head_stride] =
        weight_sum > 0.0F ? maximum + __logf(weight_sum) : kEmpty;
  }
}

__global__ void __launch_bounds__(512, 2)
    combine_deep_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  combine_rows<Deep, 16, 1, 5>(p, by_part);
}
__global__ void __launch_bounds__(256, 4)
    combine_medium_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  combine_rows<Medium, 1, 1, 8>(p, by_part);
}
__global__ void __launch_bounds__(256, 3)
    combine_wide_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  combine_rows<Wide, 1, 4, 2>(p, by_part);
}

}  // namespace

void launch_decode_combine(const DecodeParams& p, cudaStream_t stream) {
  if (p.num_requests == 0 || p.num_parts < 2) return;
  const bool by_part = p.num_requests > p.num_parts;
  const int candidates = std::min(p.num_requests, p.num_parts);
  const int rows = p.max_rows_per_request * p.num_heads;
  // Splits of an average request.
  const int depth = (p.num_requests + p.num_parts) / p.num_requests;
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "decode_combine");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "decode_combine");
  cudaLaunchConfig_t config{};
  config.gridDim.x = static_cast<unsigned>(depth >= 24  ? rows * kSlices
                                           : depth >= 4 ? (rows * kSlices + 7) / 8
                                                        : (rows + 7) / 8);
  config.gridDim.y = static_cast<unsigned>(candidates);
  config.blockDim = dim3(depth >= 24 ? 512 : 256);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config,
                                depth >= 24  ? combine_deep_kernel
                                : depth >= 4 ? combine_medium_kernel
                                             : combine_wide_kernel,
                                p, by_part),
             "decode_combine: launch");
}

}  // namespace mladcp
