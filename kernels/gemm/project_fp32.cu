#include "core/ceil_div.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/grid.h"
#include "kernels/device/vectors.cuh"
#include "kernels/gemm/project_fp32.h"

namespace mladcp {
namespace {

constexpr int kRows = 16;     // tokens of a block
constexpr int kColumns = 64;  // values of a block
constexpr int kDepth = 32;    // latents in shared memory at once
constexpr int kThreads = 256;
constexpr int kRowsPerThread = kRows * kColumns / kThreads;

struct ProjectParams {
  void* out;
  const float* latent;
  const __nv_bfloat16* weight;
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t columns;
  std::int64_t out_strides[3];
  std::int64_t latent_strides[3];
  std::int64_t weight_strides[3];  // of h, l, v
};

// blockIdx: column tile, head, row tile (strided).
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    project_kernel(const __grid_constant__ ProjectParams p) {
  __shared__ float latents[kRows][kDepth];
  __shared__ float weights[kDepth][kColumns];
  const std::int64_t head = blockIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  const int first_row = threadIdx.x / kColumns * kRowsPerThread;
  for (std::int64_t tile = std::int64_t{blockIdx.z} * kRows; tile < p.rows;
       tile += std::int64_t{gridDim.z} * kRows) {
    float sums[kRowsPerThread] = {};
    for (std::int64_t begin = 0; begin < p.depth; begin += kDepth) {
      __syncthreads();
      for (int i = threadIdx.x; i < kRows * kDepth; i += kThreads) {
        const std::int64_t t = tile + i / kDepth;
        const std::int64_t l = begin + i % kDepth;
        latents[i / kDepth][i % kDepth] =
            t < p.rows && l < p.depth
                ? p.latent[t * p.latent_strides[0] + head * p.latent_strides[1] +
                           l * p.latent_strides[2]]
                : 0.0F;
      }
      for (int i = threadIdx.x; i < kDepth * kColumns; i += kThreads) {
        const std::int64_t l = begin + i / kColumns;
        const std::int64_t v = std::int64_t{blockIdx.x} * kColumns + i % kColumns;
        weights[i / kColumns][i % kColumns] =
            l < p.depth && v < p.columns
                ? __bfloat162float(p.weight[head * p.weight_strides[0] + l * p.weight_strides[1] +
                                            v * p.weight_strides[2]])
                : 0.0F;
      }
      __syncthreads();
      for (int l = 0; l < kDepth; ++l) {
        const float w = weights[l][threadIdx.x % kColumns];
#pragma unroll
        for (int i = 0; i < kRowsPerThread; ++i) sums[i] += latents[first_row + i][l] * w;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const std::int64_t t = tile + first_row + i;
      if (t >= p.rows || column >= p.columns) continue;
      static_cast<Out*>(
          p.out)[t * p.out_strides[0] + head * p.out_strides[1] + column * p.out_strides[2]] =
          from_float<Out>(sums[i]);
    }
  }
}

}  // namespace

void launch_project_fp32(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                         Stream stream) {
  if (out.elements() == 0) return;
  ProjectParams p = {};
  p.out = out.data;
  p.latent = latent.as<const float>();
  p.weight = w_uv.as<const __nv_bfloat16>();
  p.rows = latent.shape[0];
  p.depth = latent.shape[2];
  p.columns = out.shape[2];
  for (int dim = 0; dim < 3; ++dim) {
    p.out_strides[dim] = out.strides[dim];
    p.latent_strides[dim] = latent.strides[dim];
    p.weight_strides[dim] = w_uv.strides[dim];
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(p.columns, kColumns)),
                  static_cast<unsigned>(latent.shape[1]),
                  static_cast<unsigned>(std::min<std::int64_t>(ceil_div(p.rows, kRows), 65535)));
  const cudaStream_t cuda = cuda_stream(stream);
  if (out.dtype == DType::kF32) {
    project_kernel<float><<<grid, kThreads, 0, cuda>>>(p);
  } else {
    project_kernel<__nv_bfloat16><<<grid, kThreads, 0, cuda>>>(p);
  }
  check_launch("project_kernel");
}

}  // namespace mladcp
