// cuBLAS: one handle with a workspace of its own, and the batched product the projections are made
// of.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/device/cuda_device.h"

struct cublasContext;

namespace mladcp {

// Not thread safe: one per rank. The workspace is taken once, so that a captured product allocates
// nothing and its result does not depend on what else runs.
class Blas {
 public:
  // Throws CudaError naming the cuBLAS call.
  explicit Blas(CudaDevice& device);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // out[b] = a[b] * w[b] for each b, fp32 accumulation, out rounded once.
  // out [B, M, N] bf16 or fp32, a [B, M, K] bf16, w [B, K, N] bf16; any strides with a dense last
  // dim, or for w a dense dim 1 (a transposed view). a may have stride 0 in dim 0. Unsupported: a
  // layout cuBLAS has no leading dimension for, named.
  void multiply(const TensorView& out, const TensorView& a, const TensorView& w, Stream stream);

 private:
  CudaDevice& device_;
  cublasContext* handle_ = nullptr;
  Tensor workspace_;
};

}  // namespace mladcp
