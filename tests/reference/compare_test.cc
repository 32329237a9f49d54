#include "reference/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Compare, NamesTheWorstElementByItsOwnBound) {
  const Tensor actual =
      filled(DType::kF32, {2, 3}, "out", [](std::int64_t i) { return static_cast<float>(i); });
  // Element 4 is off by less than element 1, but by more of its bound.
  const Expected expected{{2, 3}, {0, 1.5, 2, 3, 4.25, 5}, {1, 1, 1, 1, 0.125, 1}};
  const Comparison result = compare(actual, expected);
  EXPECT_FALSE(result.pass());
  EXPECT_EQ(result.outside, 1);
  EXPECT_EQ(result.worst_index, (Shape{1, 1}));
  EXPECT_EQ(result.worst_ratio, 2.0);
  EXPECT_EQ(result.actual, 4.0);
  EXPECT_EQ(result.expected, 4.25);
  EXPECT_EQ(result.largest_error, 0.5);
  EXPECT_NE(to_string(result).find("out fp32 [2, 3]: worst at [1, 1]: got 4, wanted 4.25"),
            std::string::npos)
      << result;
}

TEST(Compare, NothingExcusesAValueThatIsNotFinite) {
  struct Case {
    double actual, expected, bound;
    bool holds;
  };
  for (const Case& c :
       {Case{kNaN, 1.0, 1e9, false}, Case{kInf, 1.0, kInf, false}, Case{1.0, -kInf, 1e9, false},
        Case{-kInf, -kInf, 0.0, true}, Case{kInf, -kInf, 1.0, false}, Case{kNaN, kNaN, 0.0, true},
        Case{0.0, 0.0, 0.0, true}, Case{1e-30, 0.0, 0.0, false}}) {
    const Tensor actual =
        filled(DType::kF32, {1}, "lse", [&](std::int64_t) { return static_cast<float>(c.actual); });
    EXPECT_EQ(compare(actual, {{1}, {c.expected}, {c.bound}}).pass(), c.holds)
        << c.actual << " for " << c.expected;
  }
}

TEST(Compare, FiguresAreThoseOfTheWholeTensor) {
  const Tensor actual =
      filled(DType::kF32, {2}, "out", [](std::int64_t i) { return i ? 0.0F : 3.0F; });
  const Comparison result = compare(actual, {{2}, {3.0, 4.0}, {10.0, 10.0}});
  EXPECT_DOUBLE_EQ(result.cosine, 9.0 / (3.0 * 5.0));
  EXPECT_DOUBLE_EQ(result.relative_rms, 4.0 / 5.0);
}

TEST(Compare, BitsTellMinusZeroAndKeepNaN) {
  const Tensor a = filled(DType::kBF16, {2, 2}, "moved", [](std::int64_t i) { return i; });
  const Tensor b = filled(DType::kBF16, {2, 2}, "source", [](std::int64_t i) { return i; });
  a.as<std::uint16_t>()[3] = b.as<std::uint16_t>()[3] = 0x7FA5;
  EXPECT_TRUE(compare_bits(a, b).pass());
  a.as<std::uint16_t>()[0] = 0x8000;
  const Comparison result = compare_bits(a, b);
  EXPECT_EQ(result.outside, 1);
  EXPECT_EQ(result.worst_index, (Shape{0, 0}));
  EXPECT_THROW(compare_bits(a, b.view().viewed_as(DType::kBF16).narrow(0, 0, 1)), InvalidArgument);
}

TEST(Compare, ReadsStridedTensorsAndEmptyOnes) {
  Tensor storage;
  const Tensor dense = filled(DType::kE4M3, {2, 3}, "codes", [](std::int64_t i) { return i; });
  const TensorView strided = strided_copy(dense, storage);
  EXPECT_TRUE(compare_bits(strided, dense).pass());
  EXPECT_TRUE(compare(strided, {{2, 3}, {0, 1, 2, 3, 4, 5}, std::vector<double>(6, 0.0)}).pass());
  EXPECT_TRUE(compare(host_tensor(DType::kF32, {0, 4}, "none"), {{0, 4}, {}, {}}).pass());
}

}  // namespace
}  // namespace mladcp
