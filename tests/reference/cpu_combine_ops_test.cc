#include "reference/cpu_combine_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/lse_merge.h"
#include "reference/error_bounds.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One row and one head per value.
Tensor rows_of(const std::vector<float>& values, const Shape& shape, DType dtype = DType::kF32) {
  return filled(dtype, shape, "rows",
                [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

struct Merged {
  float out, lse;
};

// The merge of N one-element partials, by `merge` and, which must agree, by `correct` and a sum.
Merged merge_scalars(const std::vector<float>& outs, const std::vector<float>& lses) {
  const auto world = static_cast<std::int64_t>(outs.size());
  const Tensor partials = rows_of(outs, {world, 1, 1, 1});
  const Tensor lse_in = rows_of(lses, {world, 1, 1});
  const Tensor out = host_tensor(DType::kF32, {1, 1, 1}, "out");
  const Tensor lse = host_tensor(DType::kF32, {1, 1}, "lse");
  CpuCombineOps ops(1);
  ops.merge(out, lse, partials, lse_in, kHostStream);
  float sum = 0.0F;
  for (std::int64_t n = 0; n < world; ++n) {
    const Tensor corrected = host_tensor(DType::kF32, {1, 1, 1}, "corrected");
    ops.correct(corrected, partials.view().select(0, n), lse_in, static_cast<int>(n), kHostStream);
    sum += corrected.as<float>()[0];
  }
  EXPECT_EQ(sum, out.as<float>()[0]);
  return {out.as<float>()[0], lse.as<float>()[0]};
}

// Z = [2, 8], outputs [0, 10]: unequal shards tell the base of the logarithm.
TEST(CpuMerge, TakesTheLseInBaseE) {
  const Merged merged = merge_scalars({0.0F, 10.0F}, {std::log(2.0F), std::log(8.0F)});
  EXPECT_FLOAT_EQ(merged.out, 8.0F);
  EXPECT_FLOAT_EQ(merged.lse, std::log(10.0F));
  EXPECT_GT(std::fabs(merged.out - 7.2330317F), 0.5F);  // what ln read as log2 gives
  EXPECT_GT(std::fabs(merged.out - 8.8079708F), 0.5F);  // and the reverse
}

TEST(CpuMerge, AnEmptySideContributesExactlyNothing) {
  for (const float content : {0.0F, kNaN, kInf, -kInf, 3e38F}) {
    for (const float empty : {-kInf, kInf, kNaN}) {
      SCOPED_TRACE(testing::Message() << content << " under lse " << empty);
      const Merged left = merge_scalars({content, 5.0F}, {empty, 1.0F});
      const Merged right = merge_scalars({5.0F, content}, {1.0F, empty});
      for (const Merged& merged : {left, right}) {
        EXPECT_EQ(merged.out, 5.0F);
        EXPECT_EQ(merged.lse, 1.0F);
      }
      const Merged none = merge_scalars({content, content}, {empty, empty});
      EXPECT_EQ(none.out, 0.0F);
      EXPECT_EQ(none.lse, -kInf);
    }
  }
}

TEST(CpuMerge, DoesNotOverflow) {
  EXPECT_EQ(merge_scalars({2.0F, kNaN}, {1000.0F, -kInf}).lse, 1000.0F);
  const Merged far = merge_scalars({2.0F, 4.0F}, {1000.0F, -1000.0F});
  EXPECT_EQ(far.out, 2.0F);
  EXPECT_EQ(far.lse, 1000.0F);
  const Merged near = merge_scalars({2.0F, 4.0F}, {88.8F, 88.9F});
  EXPECT_FLOAT_EQ(near.lse, 88.9F + std::log1p(std::exp(-0.1F)));
}

struct Partials {
  Tensor values, lses;
};

// Uneven shards with empty rows that hold NaN.
Partials random_partials(std::int64_t world, std::int64_t rows, std::int64_t heads,
                         std::int64_t width, DType dtype) {
  Numbers numbers(11);
  Partials p{random_tensor(dtype, {world, rows, heads, width}, "partials", numbers, 0.5F, 2.0F),
             random_tensor(DType::kF32, {world, rows, heads}, "lses", numbers, 3.0F, 4.0F)};
  for (std::int64_t i = 0; i < world * rows * heads; i += 3) {
    p.lses.as<float>()[i] = -kInf;
    const TensorView flat = p.values.view().reshaped({world * rows * heads, width});
    poison(flat.select(0, i));
  }
  return p;
}

TEST(CpuCombine, MergesCorrectsAndSumsWithinTheirBounds) {
  for (const std::int64_t world : {1, 2, 5, 8}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << name(dtype));
      const std::int64_t rows = 4, heads = 3, width = 37;
      const Partials p = random_partials(world, rows, heads, width, dtype);
      Tensor wide;
      const TensorView partials = strided_copy(p.values, wide);
      for (const DType out_dtype : {DType::kBF16, DType::kF32}) {
        const Tensor out = host_tensor(out_dtype, {rows, heads, width}, "merged");
        const Tensor lse = host_tensor(DType::kF32, {rows, heads}, "merged lse");
        CpuCombineOps ops(2);
        ops.merge(out, lse, partials, p.lses, kHostStream);
        const ExpectedAttention expected = expect_merged(p.values, p.lses, out_dtype);
        const Comparison of_out = compare(out, expected.out);
        const Comparison of_lse = compare(lse, expected.lse);
        EXPECT_TRUE(of_out.pass()) << of_out;
        EXPECT_TRUE(of_lse.pass()) << of_lse;
        for (int rank = 0; rank < world; ++rank) {
          const Tensor corrected = host_tensor(out_dtype, {rows, heads, width}, "corrected");
          ops.correct(corrected, partials.select(0, rank), p.lses, rank, kHostStream);
          const Comparison result =
              compare(corrected,
                      expect_corrected(p.values.view().select(0, rank), p.lses, rank, out_dtype));
          EXPECT_TRUE(result.pass()) << result;
        }
      }
    }
  }
}

TEST(CpuCombine, CorrectsInPlace) {
  const Partials p = random_partials(3, 2, 4, 5, DType::kF32);
  const TensorView partial = p.values.view().select(0, 1);
  const Expected expected = expect_corrected(partial, p.lses, 1, DType::kF32);
  CpuCombineOps(1).correct(partial, partial, p.lses, 1, kHostStream);
  const Comparison result = compare(partial, expected);
  EXPECT_TRUE(result.pass()) << result;
}

TEST(CpuMergeInto, LeavesARowUntouchedWhenItsPartialIsEmpty) {
  const Partials p = random_partials(2, 6, 3, 7, DType::kF32);
  const TensorView running = p.values.view().select(0, 0);
  const TensorView running_lse = p.lses.view().select(0, 0);
  const Tensor before = copied_to_host(running, kHostStream);
  const Tensor lse_before = copied_to_host(running_lse, kHostStream);
  CpuCombineOps(1).merge_into(running, running_lse, p.values.view().select(0, 1),
                              p.lses.view().select(0, 1), kHostStream);
  const Tensor partials = host_tensor(DType::kF32, {2, 6, 3, 7}, "partials");
  const Tensor lses = host_tensor(DType::kF32, {2, 6, 3}, "lses");
  host_device().copy_strided(partials.view().select(0, 0), before, kHostStream);
  host_device().copy_strided(partials.view().select(0, 1), p.values.view().select(0, 1),
                             kHostStream);
  host_device().copy_strided(lses.view().select(0, 0), lse_before, kHostStream);
  host_device().copy_strided(lses.view().select(0, 1), p.lses.view().select(0, 1), kHostStream);
  const ExpectedAttention expected = expect_merged(partials, lses, DType::kF32);
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t h = 0; h < 3; ++h) {
      SCOPED_TRACE(testing::Message() << "row " << row << " head " << h);
      const TensorView out = running.select(0, row).select(0, h);
      const std::size_t at = static_cast<std::size_t>(row * 3 + h);
      if (is_empty_lse(lses.as<float>()[18 + at])) {
        EXPECT_EQ(bytes_of(out), bytes_of(before.view().select(0, row).select(0, h)));
        EXPECT_EQ(running_lse.as<float>()[at], lse_before.as<float>()[at]);
        continue;
      }
      const auto begin = static_cast<std::ptrdiff_t>(at * 7);
      const Expected of_row{
          {7},
          {expected.out.value.begin() + begin, expected.out.value.begin() + begin + 7},
          {expected.out.bound.begin() + begin, expected.out.bound.begin() + begin + 7}};
      const Comparison result = compare(out, of_row);
      EXPECT_TRUE(result.pass()) << result;
    }
  }
}

TEST(CpuPack, CarriesEveryLseBitPatternAndPlacesHeadsByRank) {
  const std::int64_t world = 3, rows = 2, heads = 2, width = 5;
  Numbers numbers(4);
  const Tensor partial =
      random_tensor(DType::kBF16, {rows, world * heads, width}, "partial", numbers);
  const Tensor lse = host_tensor(DType::kF32, {rows, world * heads}, "lse");
  const std::vector<std::uint32_t> bits = {0xFF800000U, 0x7FC12345U, 0x80000000U, 0x00000001U,
                                           0x3F80FFFFU, 0xC2F70001U, 0x7F800000U, 0xFFFFFFFFU,
                                           0x12345678U, 0x0000FFFFU, 0xFFFF0000U, 0x40490FDBU};
  std::copy(bits.begin(), bits.end(), lse.as<std::uint32_t>());
  const Tensor packed = host_tensor(DType::kBF16, {world, rows, heads, width + 2}, "packed");
  CpuCombineOps ops(1);
  ops.pack(packed, partial, lse, kHostStream);
  EXPECT_EQ(packed.as<std::uint16_t>()[width], 0x0000);  // low half first
  EXPECT_EQ(packed.as<std::uint16_t>()[width + 1], 0xFF80);
  const Tensor partials = host_tensor(DType::kBF16, {world, rows, heads, width}, "partials");
  const Tensor lses = host_tensor(DType::kF32, {world, rows, heads}, "lses");
  ops.unpack(partials, lses, packed, kHostStream);
  for (std::int64_t s = 0; s < world; ++s) {
    const TensorView sent = partial.view().narrow(1, s * heads, heads);
    EXPECT_EQ(bytes_of(partials.view().select(0, s)), bytes_of(sent)) << "rank " << s;
    EXPECT_EQ(bytes_of(lses.view().select(0, s)), bytes_of(lse.view().narrow(1, s * heads, heads)));
  }
}

TEST(CpuMaskEmpty, ClearsRowsWithoutVisibleKeysOnly) {
  Numbers numbers(6);
  const Tensor out = random_tensor(DType::kBF16, {4, 2, 3}, "out", numbers);
  const Tensor lse = random_tensor(DType::kF32, {4, 2}, "lse", numbers);
  const auto before = values_of(out);
  poison(out.view().select(0, 1));
  lse.as<float>()[2] = kInf;  // a foreign marker of an empty row
  CpuCombineOps(1).mask_empty(out, lse, index_tensor<std::int32_t>({3, 0, 1, -2}, "visible"),
                              kHostStream);
  const auto after = values_of(out), lses = values_of(lse);
  for (std::int64_t t = 0; t < 4; ++t) {
    const bool empty = t % 2 == 1;
    for (std::int64_t i = t * 6; i < (t + 1) * 6; ++i) {
      EXPECT_EQ(after[i], empty ? 0.0F : before[i]) << i;
    }
    for (std::int64_t i = t * 2; i < (t + 1) * 2; ++i) {
      EXPECT_EQ(std::isinf(lses[i]) && lses[i] < 0, empty) << i;
    }
  }
}

TEST(CpuRoundTo, RoundsToNearestEven) {
  const Tensor value = rows_of({1.00390625F, 1.01171875F, -3.0F}, {1, 1, 3});
  const Tensor out = host_tensor(DType::kBF16, {1, 1, 3}, "rounded");
  CpuCombineOps(1).round_to(out, value, kHostStream);
  EXPECT_EQ(values_of(out), (std::vector<float>{1.0F, 1.015625F, -3.0F}));
}

TEST(CpuCombine, RefusesARankOutsideTheGroup) {
  const Partials p = random_partials(2, 1, 1, 3, DType::kF32);
  const TensorView partial = p.values.view().select(0, 0);
  EXPECT_THROW(CpuCombineOps(1).correct(partial, partial, p.lses, 2, kHostStream), InvalidArgument);
  EXPECT_THROW(CpuCombineOps(1).correct(partial, partial, p.lses, -1, kHostStream),
               InvalidArgument);
}

}  // namespace
}  // namespace mladcp
