#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_error.h"
#include "kernels/gemm/project_fp32.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/op_checks.h"
#include "kernels/query/concat.h"

namespace mladcp {
namespace {

// out [T, H, Y], in [T, H, X], weight [H, X, Y]; all dense in the last dim.
void expect_projection(const CudaDevice& device, const TensorView& out, const TensorView& in,
                       const TensorView& weight) {
  expect_on(device, {out, in, weight});
  expect_dims(in, 3);
  expect_dims(weight, 3);
  expect_dtype(weight, DType::kBF16);
  expect_shape(weight, {in.shape[1], in.shape[2], weight.shape[2]});
  expect_shape(out, {in.shape[0], in.shape[1], weight.shape[2]});
}

void expect_concatenation(const CudaDevice& device, const TensorView& out, DType dtype,
                          const TensorView& latent, const TensorView& rope) {
  expect_on(device, {out, latent, rope});
  expect_dims(latent, 3);
  expect_dims(rope, 3);
  expect_dtype(latent, DType::kBF16);
  expect(rope, DType::kBF16, {latent.shape[0], latent.shape[1], rope.shape[2]});
  expect(out, dtype, {latent.shape[0], latent.shape[1], latent.shape[2] + rope.shape[2]});
  for (const TensorView& view : {out, latent, rope}) expect_unit_last_stride(view);
}

}  // namespace

void CudaQueryOps::absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
                          Stream stream) {
  expect_projection(device_, out, q_nope, w_uk);
  expect_dtype(out, DType::kBF16);
  expect_dtype(q_nope, DType::kBF16);
  const DeviceGuard guard(device_.index());
  blas_.multiply(out.transposed(0, 1), q_nope.transposed(0, 1), w_uk, stream);
}

void CudaQueryOps::concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
                          Stream stream) {
  expect_concatenation(device_, out, DType::kBF16, latent, rope);
  const DeviceGuard guard(device_.index());
  launch_concat(out, latent, rope, 1.0F, stream);
}

void CudaQueryOps::concat_quantize(const TensorView& out, const TensorView& latent,
                                   const TensorView& rope, float q_scale, Stream stream) {
  expect_concatenation(device_, out, DType::kE4M3, latent, rope);
  const DeviceGuard guard(device_.index());
  launch_concat(out, latent, rope, q_scale, stream);
}

void CudaQueryOps::project_value(const TensorView& out, const TensorView& latent,
                                 const TensorView& w_uv, Stream stream) {
  expect_projection(device_, out, latent, w_uv);
  expect_fp32_or_bf16(out);
  expect_fp32_or_bf16(latent);
  const DeviceGuard guard(device_.index());
  if (latent.dtype == DType::kF32) {
    launch_project_fp32(out, latent, w_uv, stream);
  } else {
    blas_.multiply(out.transposed(0, 1), latent.transposed(0, 1), w_uv, stream);
  }
}

void CudaQueryOps::project_keys_values(const TensorView& key, const TensorView& value,
                                       const TensorView& rows, const TensorView& w_uk,
                                       const TensorView& w_uv, Stream stream) {
  expect_on(device_, {key, value, rows, w_uk, w_uv});
  expect_dims(w_uk, 3);
  expect_dims(rows, 2);
  const std::int64_t heads = w_uk.shape[0];
  const std::int64_t nope = w_uk.shape[1];
  const std::int64_t latent = w_uk.shape[2];
  const std::int64_t count = rows.shape[0];
  const std::int64_t rope = rows.shape[1] - latent;
  expect_dims(w_uv, 3);
  expect_dtype(w_uk, DType::kBF16);
  expect(w_uv, DType::kBF16, {heads, latent, w_uv.shape[2]});
  expect_dtype(rows, DType::kBF16);
  expect(key, DType::kBF16, {count, heads, nope + rope});
  expect(value, DType::kBF16, {count, heads, w_uv.shape[2]});
  if (count == 0) return;
  const DeviceGuard guard(device_.index());
  // The latents and RoPE parts of all heads are the same rows: a stride of 0 over heads.
  TensorView shared = rows;
  shared.shape = {heads, count, rows.shape[1]};
  shared.strides = {0, rows.strides[0], rows.strides[1]};
  const TensorView latents = shared.narrow(2, 0, latent);
  const TensorView by_head = key.transposed(0, 1);
  blas_.multiply(by_head.narrow(2, 0, nope), latents, w_uk.transposed(1, 2), stream);
  blas_.multiply(value.transposed(0, 1), latents, w_uv, stream);
  launch_strided_copy(key.narrow(2, nope, rope), shared.narrow(2, latent, rope).transposed(0, 1),
                      stream);
}

}  // namespace mladcp
