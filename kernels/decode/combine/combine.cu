#include <algorithm>
#include <string>

#include "kernels/decode/combine/combine.h"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

constexpr int kWarps = 8;
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

struct Merge {
  float maximum;  // 0 where all splits are empty
  float inverse_sum;
  float lse;
};

// All lanes of a warp; lse_of(s) gives the LSE of split s.
template <class LseOf>
__device__ __forceinline__ Merge merge_lse(int num_splits, LseOf lse_of) {
  constexpr float kEmpty = -__builtin_huge_valf();
  const int lane = threadIdx.x & 31;
  float maximum = kEmpty;
  for (int s = lane; s < num_splits; s += 32) maximum = fmaxf(maximum, lse_of(s));
  maximum = warp_max(maximum);
  if (maximum == kEmpty) return {0.0F, 0.0F, kEmpty};
  float sum = 0.0F;
  for (int s = lane; s < num_splits; s += 32) sum += __expf(lse_of(s) - maximum);
  sum = warp_sum(sum);
  return {maximum, 1.0F / sum, maximum + __logf(sum)};
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

__device__ __forceinline__ std::uint16_t* output_row(const DecodeParams& p, const SplitRequest& r,
                                                     int row) {
  const int token = row / p.num_heads;
  const int head = row - token * p.num_heads;
  return static_cast<std::uint16_t*>(p.out) + (p.row_begin[r.request] + token) * p.out_row_stride +
         head * p.out_head_stride;
}

__device__ __forceinline__ void store_lse(const DecodeParams& p, const SplitRequest& r, int row,
                                          float lse) {
  const int token = row / p.num_heads;
  const int head = row - token * p.num_heads;
  p.lse[(p.row_begin[r.request] + token) * p.lse_row_stride + head * p.lse_head_stride] = lse;
}

// Few rows, many splits: a CTA takes 128 dims of one row, its warps every 8th split.
__global__ void __launch_bounds__(kWarps * 32)
    combine_deep_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  __shared__ float4 partial_sums[kWarps][32];
  allow_dependent_grid();
  const SplitRequest r = find_split_request(p, blockIdx.y, by_part);
  const int row = blockIdx.x / kSlices;
  const int slice = blockIdx.x % kSlices;
  if (r.num_splits < 2 || row >= r.rows) return;
  const int warp = threadIdx.x >> 5;
  const int lane = threadIdx.x & 31;
  const std::int64_t rows_per_split =
      static_cast<std::int64_t>(p.max_rows_per_request) * p.num_heads;
  const std::int64_t first_row = r.first_split * rows_per_split + row;
  const float* source = p.partial_out + first_row * kDecodeLatentRank + slice * kSlice + lane * 4;
  const float* lse = p.partial_lse + first_row;
  const auto lse_of = [&](int s) { return __ldcg(lse + s * rows_per_split); };
  constexpr int kAhead = 17;  // 132 splits in one go
  wait_for_upstream_grid();

  float4 value[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int s = warp + kWarps * i;
    if (s < r.num_splits) {
      value[i] =
          __ldcg(reinterpret_cast<const float4*>(source + s * rows_per_split * kDecodeLatentRank));
    }
  }
  const Merge merge = merge_lse(r.num_splits, lse_of);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  const auto add = [&](int s, const float4& v) {
    const float w = __expf(lse_of(s) - merge.maximum) * merge.inverse_sum;
    if (w != 0.0F) add_scaled(sum, w, v);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int s = warp + kWarps * i;
    if (s < r.num_splits) add(s, value[i]);
  }
  for (int s = warp + kWarps * kAhead; s < r.num_splits; s += kWarps) {
    add(s,
        __ldcg(reinterpret_cast<const float4*>(source + s * rows_per_split * kDecodeLatentRank)));
  }
  partial_sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) add_scaled(sum, 1.0F, partial_sums[w][lane]);
  store_bf16x4(output_row(p, r, row) + slice * kSlice + lane * 4, sum);
  if (slice == 0 && lane == 0) store_lse(p, r, row, merge.lse);
}

// Many rows, few splits: a warp takes a whole row.
__global__ void __launch_bounds__(kWarps * 32)
    combine_wide_kernel(const __grid_constant__ DecodeParams p, bool by_part) {
  allow_dependent_grid();
  const SplitRequest r = find_split_request(p, blockIdx.y, by_part);
  const int row = blockIdx.x * kWarps + (threadIdx.x >> 5);
  const int lane = threadIdx.x & 31;
  if (r.num_splits < 2 || row >= r.rows) return;
  const std::int64_t rows_per_split =
      static_cast<std::int64_t>(p.max_rows_per_request) * p.num_heads;
  const std::int64_t first_row = r.first_split * rows_per_split + row;
  const float* source = p.partial_out + first_row * kDecodeLatentRank + lane * 4;
  const float* lse = p.partial_lse + first_row;
  const auto lse_of = [&](int s) { return __ldcg(lse + s * rows_per_split); };
  wait_for_upstream_grid();

  float4 value[2][kSlices];
  const auto load = [&](int s) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      value[s & 1][i] = __ldcg(reinterpret_cast<const float4*>(
          source + s * rows_per_split * kDecodeLatentRank + i * kSlice));
    }
  };
  load(0);
  load(1);
  const Merge merge = merge_lse(r.num_splits, lse_of);
  float4 sum[kSlices] = {};
  const auto add = [&](int s) {
    const float w = __expf(lse_of(s) - merge.maximum) * merge.inverse_sum;
    if (w == 0.0F) return;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) add_scaled(sum[i], w, value[s & 1][i]);
  };
  for (int s = 0; s < r.num_splits; s += 2) {
    add(s);
    if (s + 2 < r.num_splits) load(s + 2);
    if (s + 1 < r.num_splits) {
      add(s + 1);
      if (s + 3 < r.num_splits) load(s + 3);
    }
  }
  std::uint16_t* out = output_row(p, r, row) + lane * 4;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) store_bf16x4(out + i * kSlice, sum[i]);
  if (lane == 0) store_lse(p, r, row, merge.lse);
}

}  // namespace

void launch_decode_combine(const DecodeParams& p, cudaStream_t stream) {
  if (p.num_requests == 0 || p.num_parts < 2) return;
  const bool by_part = p.num_requests > p.num_parts;
  const int candidates = std::min(p.num_requests, p.num_parts);
  const int rows = p.max_rows_per_request * p.num_heads;
  const bool deep = p.num_parts >= 8 * p.num_requests;
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "decode_combine");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "decode_combine");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(deep ? rows * kSlices : (rows + kWarps - 1) / kWarps),
                        static_cast<unsigned>(candidates));
  config.blockDim = dim3(kWarps * 32);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  check_cuda(
      cudaLaunchKernelEx(&config, deep ? combine_deep_kernel : combine_wide_kernel, p, by_part),
      "decode_combine: launch");
}

}  // namespace mladcp
