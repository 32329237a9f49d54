#include "reference/oracle.h"

#include <Eigen/Core>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/host_rows.h"
#include "reference/oracle_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

std::vector<std::int32_t> owners_by_counting(std::int64_t length, std::int64_t world_size,
                                             std::int64_t interleave) {
  if (length < 0 || world_size < 1 || interleave < 1) {
    throw InvalidArgument("owners of " + std::to_string(length) + " positions on " +
                          std::to_string(world_size) + " ranks, " + std::to_string(interleave) +
                          " at a time: length must be >= 0, the others >= 1");
  }
  std::vector<std::int32_t> owner;
  owner.reserve(static_cast<std::size_t>(length));
  std::int32_t rank = 0;
  std::int64_t left = interleave;
  while (static_cast<std::int64_t>(owner.size()) < length) {
    if (left == 0) {
      rank = rank + 1 == world_size ? 0 : rank + 1;
      left = interleave;
    }
    owner.push_back(rank);
    --left;
  }
  return owner;
}

Tensor stored_rows(const TensorView& kv_c, const TensorView& k_pe, DType cache_dtype,
                   float k_scale) {
  expect_rank(kv_c, 2);
  expect_rank(k_pe, 2);
  const std::int64_t latent = kv_c.size(1);
  const std::int64_t width = latent + k_pe.size(1);
  expect(kv_c, DType::kBF16, {kv_c.size(0), latent});
  expect(k_pe, DType::kBF16, {kv_c.size(0), k_pe.size(1)});
  Tensor stored(host_device(), cache_dtype, {kv_c.size(0), width}, "stored rows");
  const auto element = [&](std::int64_t s, std::int64_t d) {
    const TensorView& source = d < latent ? kv_c : k_pe;
    return source.as<const BFloat16>()[offset_of(source, s, d < latent ? d : d - latent)];
  };
  for (std::int64_t s = 0; s < kv_c.size(0); ++s) {
    for (std::int64_t d = 0; d < width; ++d) {
      const std::int64_t at = s * width + d;
      if (cache_dtype == DType::kE4M3) {
        const float quotient = element(s, d).to_float() / k_scale;
        stored.as<Float8E4M3>()[at] = Float8E4M3::from_float(quotient);
      } else {
        expect_dtype(stored, DType::kBF16);
        stored.as<BFloat16>()[at] = element(s, d);
      }
    }
  }
  return stored;
}

HeadProducts multiply_heads_exactly(const TensorView& in, const TensorView& weight, int threads) {
  expect_rank(in, 3);
  expect_rank(weight, 3);
  const std::int64_t rows = in.size(0);
  const std::int64_t heads = in.size(1);
  const std::int64_t terms = in.size(2);
  const std::int64_t width = weight.size(2);
  expect_shape(weight, {heads, terms, width});
  HeadProducts result;
  result.shape = {rows, heads, width};
  result.terms = terms;
  const auto count = static_cast<std::size_t>(rows * heads * width);
  for (auto* values : {&result.value, &result.magnitude, &result.square}) values->resize(count);
  if (count == 0) return result;
  parallel_for(threads, heads, [&](std::int64_t h) {
    Matrix x(rows, terms), w(terms, width);
    for (std::int64_t t = 0; t < rows; ++t) {
      load_row_fp64(x.row(t).data(), in, offset_of(in, t, h));
    }
    for (std::int64_t i = 0; i < terms; ++i) {
      load_row_fp64(w.row(i).data(), weight, offset_of(weight, h, i));
    }
    // Head h of all rows, as a matrix inside the [T, H, Y] result.
    const auto head_of = [&](std::vector<double>& values) {
      return Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(values.data() + h * width, rows, width,
                                                         Eigen::OuterStride<>(heads * width));
    };
    head_of(result.value) = x * w;
    head_of(result.magnitude) = x.cwiseAbs() * w.cwiseAbs();
    head_of(result.square) = x.cwiseAbs2() * w.cwiseAbs2();
  });
  return result;
}

}  // namespace mladcp
