#include "reference/cpu_query_ops.h"

#include <Eigen/Core>
#include <span>
#include <vector>

#include "core/conversions.h"
#include "core/float8_e4m3.h"
#include "reference/host_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// view[:, h, :] of a [T, H, X] tensor.
RowMatrix load_head(const TensorView& view, std::int64_t h) {
  RowMatrix matrix(view.size(0), view.size(2));
  for (std::int64_t t = 0; t < view.size(0); ++t) {
    load_row(matrix.row(t).data(), view, offset_of(view, t, h));
  }
  return matrix;
}

// weight[h, :, :] of a [H, X, Y] tensor.
RowMatrix load_weight(const TensorView& weight, std::int64_t h) {
  RowMatrix matrix(weight.size(1), weight.size(2));
  for (std::int64_t x = 0; x < weight.size(1); ++x) {
    load_row(matrix.row(x).data(), weight, offset_of(weight, h, x));
  }
  return matrix;
}

// out[:, h, :] = in[:, h, :] * weight[h], head by head, in fp32, rounded once to out's dtype.
void multiply_heads(int threads, const TensorView& out, const TensorView& in,
                    const TensorView& weight) {
  expect_host(out);
  expect_host(in);
  expect_host(weight);
  expect_float(in);
  expect_float(out);
  expect_dtype(weight, DType::kBF16);
  expect_rank(in, 3);
  expect_rank(weight, 3);
  const std::int64_t rows = in.size(0);
  const std::int64_t heads = in.size(1);
  expect_shape(weight, {heads, in.size(2), weight.size(2)});
  expect_shape(out, {rows, heads, weight.size(2)});
  if (rows == 0) return;
  parallel_for(threads, heads, [&](std::int64_t h) {
    const RowMatrix product = load_head(in, h) * load_weight(weight, h);
    for (std::int64_t t = 0; t < rows; ++t) {
      store_row(out, offset_of(out, t, h), product.row(t).data());
    }
  });
}

void expect_concatenation(const TensorView& out, DType dtype, const TensorView& latent,
                          const TensorView& rope) {
  for (const TensorView& view : {out, latent, rope}) expect_host(view);
  expect_rank(latent, 3);
  expect_dtype(latent, DType::kBF16);
  expect_rank(rope, 3);
  expect(rope, DType::kBF16, {latent.size(0), latent.size(1), rope.size(2)});
  expect(out, dtype, {latent.size(0), latent.size(1), latent.size(2) + rope.size(2)});
}

}  // namespace

void CpuQueryOps::absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
                         Stream) {
  expect_dtype(out, DType::kBF16);
  expect_dtype(q_nope, DType::kBF16);
  multiply_heads(threads_, out, q_nope, w_uk);
}

void CpuQueryOps::project_value(const TensorView& out, const TensorView& latent,
                                const TensorView& w_uv, Stream) {
  multiply_heads(threads_, out, latent, w_uv);
}

void CpuQueryOps::concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
                         Stream) {
  expect_concatenation(out, DType::kBF16, latent, rope);
  const TensorView out_latent = out.narrow(2, 0, latent.size(2));
  const TensorView out_rope = out.narrow(2, latent.size(2), rope.size(2));
  for (std::int64_t t = 0; t < out.size(0); ++t) {
    for (std::int64_t h = 0; h < out.size(1); ++h) {
      copy_row(out_latent, offset_of(out_latent, t, h), latent, offset_of(latent, t, h));
      copy_row(out_rope, offset_of(out_rope, t, h), rope, offset_of(rope, t, h));
    }
  }
}

void CpuQueryOps::concat_quantize(const TensorView& out, const TensorView& latent,
                                  const TensorView& rope, float q_scale, Stream) {
  expect_concatenation(out, DType::kE4M3, latent, rope);
  expect_unit_last_stride(out);
  const std::int64_t heads = out.size(1);
  const auto width = static_cast<std::size_t>(out.size(2));
  parallel_for(
      threads_, out.size(0),
      [&](std::int64_t t) {
        std::vector<float> row(width);
        for (std::int64_t h = 0; h < heads; ++h) {
          load_row(row.data(), latent, offset_of(latent, t, h));
          load_row(row.data() + latent.size(2), rope, offset_of(rope, t, h));
          quantize(std::span(out.as<Float8E4M3>() + offset_of(out, t, h), width),
                   std::span<const float>(row), q_scale);
        }
      },
      8);
}

}  // namespace mladcp
