#include <string>

#include "core/error.h"
#include "kernels/combine/combine_kernels.h"
#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_error.h"
#include "kernels/movement/rank_sum.h"
#include "kernels/op_checks.h"

namespace mladcp {
namespace {

void expect_rows(std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) expect_unit_last_stride(view);
}

// lses [N, T, H] of the partials' rows and heads.
void expect_lses(const TensorView& lses, std::int64_t rows, std::int64_t heads) {
  expect_dims(lses, 3);
  expect(lses, DType::kF32, {lses.shape[0], rows, heads});
  if (lses.shape[0] <= kMostMergedRanks) return;
  throw Unsupported("tensor " + describe(lses) + ": at most " + std::to_string(kMostMergedRanks) +
                    " ranks");
}

}  // namespace

void CudaCombineOps::mask_empty(const TensorView& out, const TensorView& lse,
                                const TensorView& visible, Stream stream) {
  expect_on(device_, {out, lse, visible});
  expect_dims(out, 3);
  expect_dtype(out, DType::kBF16);
  expect(lse, DType::kF32, {out.shape[0], out.shape[1]});
  expect(visible, DType::kI32, {out.shape[0]});
  expect_rows({out, visible});
  const DeviceGuard guard(device_.index());
  launch_mask_empty(out, lse, visible, stream);
}

void CudaCombineOps::correct(const TensorView& corrected, const TensorView& partial,
                             const TensorView& lses, int rank, Stream stream) {
  expect_on(device_, {corrected, partial, lses});
  expect_dims(partial, 3);
  expect_fp32_or_bf16(partial);
  expect_fp32_or_bf16(corrected);
  expect_shape(corrected, partial.shape);
  expect_lses(lses, partial.shape[0], partial.shape[1]);
  static_cast<void>(lses.select(0, rank));  // throws, naming the tensor
  expect_rows({corrected, partial});
  const DeviceGuard guard(device_.index());
  launch_correct(corrected, partial, lses, rank, stream);
}

void CudaCombineOps::merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
                           const TensorView& lses, Stream stream) {
  expect_on(device_, {out, lse, partials, lses});
  expect_dims(partials, 4);
  expect_fp32_or_bf16(partials);
  expect_fp32_or_bf16(out);
  const std::int64_t rows = partials.shape[1];
  const std::int64_t heads = partials.shape[2];
  expect_lses(lses, rows, heads);
  expect_shape(partials, {lses.shape[0], rows, heads, partials.shape[3]});
  expect_shape(out, {rows, heads, partials.shape[3]});
  expect(lse, DType::kF32, {rows, heads});
  expect_rows({out, partials});
  const DeviceGuard guard(device_.index());
  launch_merge(out, lse, partials, lses, stream);
}

void CudaCombineOps::merge_into(const TensorView& running, const TensorView& running_lse,
                                const TensorView& partial, const TensorView& partial_lse,
                                Stream stream) {
  expect_on(device_, {running, running_lse, partial, partial_lse});
  expect_dims(running, 3);
  expect_dtype(running, DType::kF32);
  expect(partial, DType::kF32, running.shape);
  expect(running_lse, DType::kF32, {running.shape[0], running.shape[1]});
  expect(partial_lse, DType::kF32, running_lse.shape);
  expect_rows({running, partial});
  const DeviceGuard guard(device_.index());
  launch_merge_into(running, running_lse, partial, partial_lse, stream);
}

void CudaCombineOps::pack(const TensorView& packed, const TensorView& partial,
                          const TensorView& lse, Stream stream) {
  expect_on(device_, {packed, partial, lse});
  expect_dims(packed, 4);
  expect_dims(partial, 3);
  const std::int64_t ranks = packed.shape[0];
  const std::int64_t heads = packed.shape[2];
  expect(partial, DType::kBF16, {packed.shape[1], ranks * heads, partial.shape[2]});
  expect(packed, DType::kBF16, {ranks, packed.shape[1], heads, partial.shape[2] + 2});
  expect(lse, DType::kF32, {packed.shape[1], ranks * heads});
  expect_rows({packed, partial});
  const DeviceGuard guard(device_.index());
  launch_pack(packed, partial, lse, stream);
}

void CudaCombineOps::unpack(const TensorView& partials, const TensorView& lses,
                            const TensorView& packed, Stream stream) {
  expect_on(device_, {partials, lses, packed});
  expect_dims(partials, 4);
  const Shape& shape = partials.shape;
  expect_dtype(partials, DType::kBF16);
  expect(packed, DType::kBF16, {shape[0], shape[1], shape[2], shape[3] + 2});
  expect(lses, DType::kF32, {shape[0], shape[1], shape[2]});
  expect_rows({partials, packed});
  const DeviceGuard guard(device_.index());
  launch_unpack(partials, lses, packed, stream);
}

void CudaCombineOps::round_to(const TensorView& out, const TensorView& value, Stream stream) {
  expect_on(device_, {out, value});
  expect_fp32_or_bf16(out);
  expect_fp32_or_bf16(value);
  const DeviceGuard guard(device_.index());
  launch_rank_sum(out, std::span(&value, 1), stream);  // a sum of one, rounded once
}

}  // namespace mladcp
