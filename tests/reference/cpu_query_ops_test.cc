#include "reference/cpu_query_ops.h"

#include <gtest/gtest.h>

#include "core/conversions.h"
#include "core/error.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

// Small integers: every sum is exact in fp32, so the law holds to the bit.
Tensor integers(DType dtype, const Shape& shape, const char* name, std::int64_t modulus) {
  return filled(dtype, shape, name, [=](std::int64_t i) { return i * 7 % modulus - 2; });
}

constexpr std::int64_t kRows = 5, kHeads = 3, kNope = 11, kLatent = 24, kRope = 7;

TEST(CpuQueryOps, AbsorbSumsOverTheNopeAxisHeadByHead) {
  const Tensor q = integers(DType::kBF16, {kRows, kHeads, kNope}, "q_nope", 6);
  const Tensor w = integers(DType::kBF16, {kHeads, kNope, kLatent}, "w_uk", 5);
  Tensor q_wide, w_wide;
  for (const int threads : {1, 2}) {
    const Tensor out = host_tensor(DType::kBF16, {kRows, kHeads, kLatent}, "absorbed");
    poison(out);
    CpuQueryOps(threads).absorb(out, strided_copy(q, q_wide), strided_copy(w, w_wide), kHostStream);
    const auto qs = values_of(q), ws = values_of(w), outs = values_of(out);
    for (std::int64_t t = 0; t < kRows; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t l = 0; l < kLatent; ++l) {
          float sum = 0.0F;
          for (std::int64_t p = 0; p < kNope; ++p) {
            sum += qs[(t * kHeads + h) * kNope + p] * ws[(h * kNope + p) * kLatent + l];
          }
          ASSERT_EQ(outs[(t * kHeads + h) * kLatent + l], sum) << t << " " << h << " " << l;
        }
      }
    }
  }
}

TEST(CpuQueryOps, ProjectValueTakesTransposedWeightsAndWritesBothFormats) {
  const Tensor latent = integers(DType::kF32, {kRows, kHeads, kLatent}, "latent", 6);
  const Tensor w_transposed = integers(DType::kBF16, {kHeads, kNope, kLatent}, "w_uv", 5);
  const TensorView w = w_transposed.view().transposed(1, 2);  // [H, L, Vd]
  const auto xs = values_of(latent), ws = values_of(w);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor out = host_tensor(dtype, {kRows, kHeads, kNope}, "projected");
    CpuQueryOps(1).project_value(out, latent, w, kHostStream);
    const auto outs = values_of(out);
    for (std::int64_t row = 0; row < kRows * kHeads; ++row) {
      for (std::int64_t v = 0; v < kNope; ++v) {
        float sum = 0.0F;
        for (std::int64_t l = 0; l < kLatent; ++l) {
          sum += xs[row * kLatent + l] * ws[(row % kHeads * kLatent + l) * kNope + v];
        }
        ASSERT_EQ(outs[row * kNope + v], sum) << row << " " << v;
      }
    }
  }
}

TEST(CpuQueryOps, ConcatMovesBitsNaNPayloadsIncluded) {
  Numbers numbers(1);
  Tensor latent = random_tensor(DType::kBF16, {kRows, kHeads, kLatent}, "latent", numbers);
  const Tensor rope = random_tensor(DType::kBF16, {kRows, kHeads, kRope}, "rope", numbers);
  latent.as<std::uint16_t>()[kLatent + 1] = 0xFFA5;
  Tensor latent_wide, rope_wide;
  const Tensor out = host_tensor(DType::kBF16, {kRows, kHeads, kLatent + kRope}, "query");
  CpuQueryOps(2).concat(out, strided_copy(latent, latent_wide), strided_copy(rope, rope_wide),
                        kHostStream);
  EXPECT_EQ(bytes_of(out.view().narrow(2, 0, kLatent)), bytes_of(latent));
  EXPECT_EQ(bytes_of(out.view().narrow(2, kLatent, kRope)), bytes_of(rope));
}

TEST(CpuQueryOps, ConcatQuantizeDividesByTheScale) {
  Numbers numbers(2);
  const Tensor latent = random_tensor(DType::kBF16, {kRows, kHeads, kLatent}, "latent", numbers);
  const Tensor rope =
      random_tensor(DType::kBF16, {kRows, kHeads, kRope}, "rope", numbers, 3.0F, 100.0F);
  for (const float scale : {1.0F, 3.0F, 0.1F}) {
    const Tensor out = host_tensor(DType::kE4M3, {kRows, kHeads, kLatent + kRope}, "query");
    CpuQueryOps(2).concat_quantize(out, latent, rope, scale, kHostStream);
    const auto latents = values_of(latent), ropes = values_of(rope);
    const auto* codes = out.as<const Float8E4M3>();
    for (std::int64_t row = 0; row < kRows * kHeads; ++row) {
      for (std::int64_t d = 0; d < kLatent + kRope; ++d) {
        const float x = d < kLatent ? latents[row * kLatent + d] : ropes[row * kRope + d - kLatent];
        ASSERT_EQ(codes[row * (kLatent + kRope) + d].bits, Float8E4M3::from_float(x / scale).bits);
      }
    }
  }
}

TEST(CpuQueryOps, TakesNoRowsAtAll) {
  const Tensor q = host_tensor(DType::kBF16, {0, kHeads, kNope}, "q_nope");
  const Tensor w = integers(DType::kBF16, {kHeads, kNope, kLatent}, "w_uk", 5);
  const Tensor out = host_tensor(DType::kBF16, {0, kHeads, kLatent}, "absorbed");
  EXPECT_NO_THROW(CpuQueryOps(2).absorb(out, q, w, kHostStream));
}

TEST(CpuQueryOps, RefusesWeightsOfOtherHeadsNamingTheTensor) {
  const Tensor q = integers(DType::kBF16, {kRows, kHeads, kNope}, "q_nope", 6);
  const Tensor w = integers(DType::kBF16, {kHeads + 1, kNope, kLatent}, "w_uk", 5);
  const Tensor out = host_tensor(DType::kBF16, {kRows, kHeads, kLatent}, "absorbed");
  try {
    CpuQueryOps(1).absorb(out, q, w, kHostStream);
    FAIL() << "weights of 4 heads were taken for 3";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("w_uk"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace mladcp
