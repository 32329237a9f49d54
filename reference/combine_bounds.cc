// Expectations of the combine stages, from the tensors they were given.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "reference/error_bounds.h"
#include "reference/host_rows.h"
#include "reference/oracle_rows.h"

namespace mladcp {
namespace {

constexpr double kFp32 = 0x1p-24;
constexpr double kNoWeight = 0x1p-126;  // smaller weights may be flushed in fp32

Expected make_expected(const Shape& shape) {
  const auto count = static_cast<std::size_t>(element_count(shape));
  return {shape, std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)};
}

std::vector<double> row_of(const TensorView& view, std::int64_t offset) {
  std::vector<double> row(static_cast<std::size_t>(view.shape[view.rank() - 1]));
  if (!row.empty()) load_row_fp64(row.data(), view, offset);
  return row;
}

// The merge law in fp64 for one row (t, h); anything but a finite LSE counts as empty.
struct Weights {
  std::vector<double> weight;    // [N]
  std::vector<double> relative;  // [N] error of each weight, as fp32 computes it
  double lse = -std::numeric_limits<double>::infinity();
  double lse_error = 0.0;

  Weights(const TensorView& lses, std::int64_t t, std::int64_t h) {
    std::vector<double> lse_of;
    for (std::int64_t n = 0; n < lses.size(0); ++n) {
      lse_of.push_back(double{lses.as<const float>()[offset_of(lses, n, t, h)]});
    }
    double max = lse;
    for (const double value : lse_of) {
      if (std::isfinite(value)) max = std::fmax(max, value);
    }
    double total = 0.0;
    const auto count = static_cast<double>(lse_of.size());
    for (const double value : lse_of) {
      const bool empty = !std::isfinite(value);
      weight.push_back(empty ? 0.0 : std::exp(value - max));
      // The difference is rounded once; exp, sum and division a few times more.
      relative.push_back(empty ? 0.0 : kFp32 * (std::fabs(value - max) + 8 + count));
      total += weight.back();
    }
    if (total == 0.0) return;
    for (double& w : weight) w /= total;
    lse = max + std::log(total);
    lse_error = kFp32 * (std::fabs(lse) + 8 + count);
  }
};

void expect_lses(const TensorView& lses, std::int64_t world, std::int64_t rows,
                 std::int64_t heads) {
  expect(lses, DType::kF32, {world, rows, heads});
}

}  // namespace

Expected expect_corrected(const TensorView& partial, const TensorView& lses, int rank, DType out) {
  expect_rank(partial, 3);
  const std::int64_t rows = partial.size(0);
  const std::int64_t heads = partial.size(1);
  const std::int64_t width = partial.size(2);
  expect_lses(lses, lses.size(0), rows, heads);
  const double unit = unit_roundoff(out);
  Expected expected = make_expected(partial.shape);
  std::size_t at = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Weights weights(lses, t, h);
      const double weight = weights.weight[static_cast<std::size_t>(rank)];
      const double relative = weights.relative[static_cast<std::size_t>(rank)];
      const std::vector<double> row = row_of(partial, offset_of(partial, t, h));
      for (std::int64_t x = 0; x < width; ++x, ++at) {
        if (weight == 0.0) continue;  // exactly 0, whatever the partial holds
        expected.value[at] = weight * row[static_cast<std::size_t>(x)];
        const double error = relative * std::fabs(expected.value[at]) +
                             kNoWeight * std::fabs(row[static_cast<std::size_t>(x)]);
        expected.bound[at] = error + rounding(unit, expected.value[at], error);
      }
    }
  }
  return expected;
}

Expected expect_sum(std::span<const TensorView> inputs, DType out, int roundings) {
  if (inputs.empty()) throw InvalidArgument("a sum needs at least one input");
  const TensorView& first = inputs[0];
  expect_rank(first, 3);
  const double unit = unit_roundoff(out);
  Expected expected = make_expected(first.shape);
  const auto width = static_cast<std::size_t>(first.size(2));
  std::vector<double> magnitude(expected.value.size(), 0.0);
  for (const TensorView& input : inputs) {
    expect_shape(input, first.shape);
    for (std::int64_t row = 0; row < first.size(0) * first.size(1); ++row) {
      const std::vector<double> values =
          row_of(input, offset_of(input, row / first.size(1), row % first.size(1)));
      for (std::size_t x = 0; x < width; ++x) {
        const std::size_t at = static_cast<std::size_t>(row) * width + x;
        expected.value[at] += values[x];
        magnitude[at] += std::fabs(values[x]);
      }
    }
  }
  for (std::size_t at = 0; at < magnitude.size(); ++at) {
    // Every partial sum is at most the magnitude; the last rounding is of the result itself.
    const double sums =
        (kFp32 * static_cast<double>(inputs.size()) + unit * (roundings - 1)) * magnitude[at];
    expected.bound[at] = sums + rounding(unit, expected.value[at], sums);
  }
  return expected;
}

ExpectedAttention expect_merged(const TensorView& partials, const TensorView& lses, DType out) {
  expect_rank(partials, 4);
  const std::int64_t world = partials.size(0);
  const std::int64_t rows = partials.size(1);
  const std::int64_t heads = partials.size(2);
  const auto width = static_cast<std::size_t>(partials.size(3));
  expect_lses(lses, world, rows, heads);
  const double unit = unit_roundoff(out);
  ExpectedAttention expected{make_expected({rows, heads, partials.size(3)}),
                             make_expected({rows, heads})};
  for (std::int64_t row = 0; row < rows * heads; ++row) {
    const std::int64_t t = row / heads;
    const std::int64_t h = row % heads;
    const Weights weights(lses, t, h);
    const auto at_row = static_cast<std::size_t>(row);
    expected.lse.value[at_row] = weights.lse;
    expected.lse.bound[at_row] = weights.lse_error;
    std::vector<double> error(width, 0.0);
    double* value = expected.out.value.data() + at_row * width;
    for (std::int64_t n = 0; n < world; ++n) {
      const double weight = weights.weight[static_cast<std::size_t>(n)];
      if (weight == 0.0) continue;
      const double relative = weights.relative[static_cast<std::size_t>(n)];
      const std::vector<double> partial = row_of(partials, offset_of(partials, n, t, h));
      for (std::size_t x = 0; x < width; ++x) {
        value[x] += weight * partial[x];
        error[x] += (relative * weight + kNoWeight) * std::fabs(partial[x]);
      }
    }
    if (weights.lse_error == 0.0) continue;  // all empty: exactly 0
    for (std::size_t x = 0; x < width; ++x) {
      expected.out.bound[at_row * width + x] = error[x] + rounding(unit, value[x], error[x]);
    }
  }
  return expected;
}

}  // namespace mladcp
