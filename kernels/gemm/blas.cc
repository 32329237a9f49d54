#include "kernels/gemm/blas.h"

#include <cublas_v2.h>

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // cuBLAS' advice for sm_90

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(std::string(call) + ": " + cublasGetStatusString(status) + " (status " +
                  std::to_string(static_cast<int>(status)) + ")");
}

cudaDataType_t cuda_type(const TensorView& view) {
  if (view.dtype == DType::kBF16) return CUDA_R_16BF;
  if (view.dtype == DType::kF32) return CUDA_R_32F;
  throw Unsupported("matrix product: tensor " + describe(view) +
                    " must be bf16 (or fp32 as the result)");
}

int to_int(std::int64_t value, const TensorView& view) {
  if (value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  throw Unsupported("matrix product: tensor " + describe(view) + " with strides " +
                    to_string(view.strides) +
                    " passes the 32-bit sizes of cuBLAS; use fewer rows a call");
}

// A row-major matrix [rows, columns] is a column-major [columns, rows]; its leading dimension is
// the row stride.
struct Matrix {
  cublasOperation_t operation;
  int leading;
};

Matrix as_matrix(const TensorView& view, int row_dim) {
  const int column_dim = row_dim + 1;
  const auto dense = [&](int dim) { return view.shape[dim] <= 1 || view.strides[dim] == 1; };
  const auto leading = [&](int dim, int other) {
    const std::int64_t least = std::max<std::int64_t>(view.shape[other], 1);
    return view.shape[dim] <= 1 ? least : view.strides[dim];
  };
  if (dense(column_dim) && leading(row_dim, column_dim) >= view.shape[column_dim]) {
    return {CUBLAS_OP_N, to_int(leading(row_dim, column_dim), view)};
  }
  if (dense(row_dim) && leading(column_dim, row_dim) >= view.shape[row_dim]) {
    return {CUBLAS_OP_T, to_int(leading(column_dim, row_dim), view)};
  }
  throw Unsupported("matrix product: tensor " + describe(view) + " with strides " +
                    to_string(view.strides) +
                    " is neither dense along its rows nor along its columns; copy it first");
}

}  // namespace

// A handle belongs to the device that is current when it is made.
Blas::Blas(CudaDevice& device)
    : device_(device), workspace_(device, DType::kBytes, {kWorkspaceBytes}, "cuBLAS workspace") {
  const DeviceGuard guard(device_.index());
  check_blas(cublasCreate(&handle_), "cublasCreate");
}

Blas::~Blas() {
  if (handle_ == nullptr) return;
  const DeviceGuard guard(device_.index());
  static_cast<void>(cublasDestroy(handle_));
}

void Blas::multiply(const TensorView& out, const TensorView& a, const TensorView& w,
                    Stream stream) {
  if (out.elements() == 0) return;
  const Matrix out_matrix = as_matrix(out, 1);
  const Matrix a_matrix = as_matrix(a, 1);
  const Matrix w_matrix = as_matrix(w, 1);
  if (out_matrix.operation != CUBLAS_OP_N) {
    throw Unsupported("matrix product: the result " + describe(out) +
                      " must be dense along its rows");
  }
  const DeviceGuard guard(device_.index());
  check_blas(cublasSetStream(handle_, cuda_stream(stream)), "cublasSetStream");
  // Setting the stream gives the workspace back.
  check_blas(cublasSetWorkspace(handle_, workspace_.view().data, kWorkspaceBytes),
             "cublasSetWorkspace");
  const float one = 1.0F;
  const float zero = 0.0F;
  // Column-major out^T = w^T * a^T.
  check_blas(cublasGemmStridedBatchedEx(
                 handle_, w_matrix.operation, a_matrix.operation, to_int(out.shape[2], out),
                 to_int(out.shape[1], out), to_int(a.shape[2], a), &one, w.data, cuda_type(w),
                 w_matrix.leading, w.strides[0], a.data, cuda_type(a), a_matrix.leading,
                 a.strides[0], &zero, out.data, cuda_type(out), out_matrix.leading, out.strides[0],
                 to_int(out.shape[0], out), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
             "cublasGemmStridedBatchedEx");
}

}  // namespace mladcp
