// The prefill half of CudaAttentionOps.
#include <string>

#include "core/error.h"
#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/row_access.h"
#include "kernels/op_checks.h"
#include "kernels/prefill/prefill_attention.h"

namespace mladcp {
namespace {

struct Attention {
  const TensorView& out;
  const TensorView& lse;
  const TensorView& query;
  const TensorView& key;
  const TensorView& value;
  const TensorView& cu_rows;
  const TensorView& cu_keys;
};

void expect_attention(const CudaDevice& device, const Attention& a) {
  expect_on(device, {a.out, a.lse, a.query, a.key, a.value, a.cu_rows, a.cu_keys});
  for (const TensorView& view : {a.out, a.query, a.key, a.value}) expect_dims(view, 3);
  const std::int64_t rows = a.query.shape[0];
  const std::int64_t heads = a.query.shape[1];
  const std::int64_t keys = a.key.shape[0];
  if (a.query.shape[2] != kPrefillQkDim || a.value.shape[2] != kPrefillValueDim) {
    throw Unsupported("CUDA prefill attention: query width " + std::to_string(a.query.shape[2]) +
                      ", value width " + std::to_string(a.value.shape[2]) +
                      "; the kernels are built for 192 and 128");
  }
  expect_dtype(a.query, DType::kBF16);
  expect(a.key, DType::kBF16, {keys, heads, kPrefillQkDim});
  expect(a.value, DType::kBF16, {keys, heads, kPrefillValueDim});
  expect(a.out, DType::kF32, {rows, heads, kPrefillValueDim});
  expect(a.lse, DType::kF32, {rows, heads});
  expect_dtype(a.cu_rows, DType::kI32);
  expect_dims(a.cu_rows, 1);
  expect(a.cu_keys, DType::kI32, a.cu_rows.shape);
  expect_unit_last_stride(a.cu_rows);
  expect_unit_last_stride(a.cu_keys);
  for (const TensorView& view : {a.query, a.key, a.value})
    expect_aligned_rows(view, 8, "CUDA prefill attention");
  expect_aligned_rows(a.out, 2, "CUDA prefill attention");
  if (heads > 65535) throw Unsupported("CUDA prefill attention: more than 65535 heads");
}

PrefillParams make_params(const Attention& a, std::int64_t max_rows, float softmax_scale) {
  PrefillParams p = {};
  p.out = a.out.as<float>();
  p.lse = a.lse.as<float>();
  p.query = a.query.data;
  p.key = a.key.data;
  p.value = a.value.data;
  for (int dim = 0; dim < 2; ++dim) {
    p.out_strides[dim] = a.out.strides[dim];
    p.lse_strides[dim] = a.lse.strides[dim];
    p.query_strides[dim] = a.query.strides[dim];
    p.key_strides[dim] = a.key.strides[dim];
    p.value_strides[dim] = a.value.strides[dim];
  }
  p.cu_rows = a.cu_rows.as<const std::int32_t>();
  p.cu_keys = a.cu_keys.as<const std::int32_t>();
  p.requests = a.cu_rows.shape[0] - 1;
  p.heads = a.query.shape[1];
  p.max_rows = max_rows;
  p.softmax_scale = softmax_scale;
  return p;
}

}  // namespace

void CudaAttentionOps::causal(const TensorView& out, const TensorView& lse, const TensorView& query,
                              const TensorView& key, const TensorView& value,
                              const TensorView& cu_rows, std::int64_t max_rows, float softmax_scale,
                              Stream stream) {
  const Attention attention = {out, lse, query, key, value, cu_rows, cu_rows};
  expect_attention(device_, attention);
  expect_shape(key, query.shape);
  const DeviceGuard guard(device_.index());
  launch_prefill_attention(make_params(attention, max_rows, softmax_scale), true, stream);
}

void CudaAttentionOps::context(const TensorView& out, const TensorView& lse,
                               const TensorView& query, const TensorView& key,
                               const TensorView& value, const TensorView& cu_rows,
                               std::int64_t max_rows, const TensorView& cu_context,
                               float softmax_scale, Stream stream) {
  const Attention attention = {out, lse, query, key, value, cu_rows, cu_context};
  expect_attention(device_, attention);
  const DeviceGuard guard(device_.index());
  launch_prefill_attention(make_params(attention, max_rows, softmax_scale), false, stream);
}

}  // namespace mladcp
