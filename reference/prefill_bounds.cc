#include "reference/prefill_bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/error_bounds.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

// fp32 roundings a row's sums go through, in units: merges, the maximum's subtraction,
// accumulation.
double chain_of(double lse, std::int64_t keys, std::int64_t chunks) {
  const auto n = static_cast<double>(keys);
  return static_cast<double>(chunks + 1) * (2.0 * std::abs(lse) + 8.0) + std::log(n) +
         4.0 * std::sqrt(n) + 16.0;
}

double squared(double x) { return x * x; }

// to[:, head, :] = from, where `to` has `heads` heads.
void place(std::vector<double>& to, const std::vector<double>& from, std::int64_t head,
           std::int64_t heads, std::int64_t rows) {
  const std::int64_t width = rows == 0 ? 0 : static_cast<std::int64_t>(from.size()) / rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(from.begin() + row * width, width, to.begin() + (row * heads + head) * width);
  }
}

}  // namespace

ExpectedPrefill expect_prefill(const PrefillReference& reference, const PrefillFormats& formats) {
  const std::size_t rows = reference.lse.size();
  const std::size_t width = rows == 0 ? 0 : reference.out.size() / rows;
  const auto row_count = static_cast<std::int64_t>(rows);
  ExpectedPrefill expected{{{row_count, static_cast<std::int64_t>(width)}, reference.out, {}},
                           {{row_count}, reference.lse, {}}};
  expected.out.bound.reserve(reference.out.size());
  expected.lse.bound.reserve(rows);
  const double projection2 = squared(formats.projection_unit);
  for (std::size_t row = 0; row < rows; ++row) {
    if (reference.keys[row] == 0) {  // out 0, lse -inf: exactly
      expected.lse.bound.push_back(0.0);
      expected.out.bound.insert(expected.out.bound.end(), width, 0.0);
      continue;
    }
    const double chain = chain_of(reference.lse[row], reference.keys[row], formats.chunks);
    expected.lse.bound.push_back(4.0 * formats.projection_unit *
                                     std::sqrt(reference.lse_squares[row]) +
                                 formats.fp32_unit * (16.0 * reference.lse_magnitude[row] + chain));
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      const double out = std::abs(reference.out[i]);
      const double squares =
          projection2 * (reference.logit_squares[i] + reference.value_squares[i]) +
          squared(formats.p_unit) * reference.value_squares[i];
      const double fp32 =
          16.0 * (reference.logit_weighted[i] + out * reference.lse_magnitude[row]) +
          chain * reference.magnitude[i];
      expected.out.bound.push_back(rounding(formats.out_unit, out, 0.0) + 4.0 * std::sqrt(squares) +
                                   formats.fp32_unit * fp32 + reference.flushed[i] +
                                   kHalfSubnormal);
    }
  }
  return expected;
}

ExpectedPrefill expect_prefill(const PrefillProblem& problem, std::int64_t first,
                               std::int64_t count, std::span<const std::int64_t> rows,
                               const PrefillFormats& formats, int threads) {
  const auto row_count = static_cast<std::int64_t>(rows.size());
  const std::int64_t width = problem.w_uv.size(2);
  ExpectedPrefill all{{{row_count, count, width}, {}, {}}, {{row_count, count}, {}, {}}};
  for (Expected* expected : {&all.out, &all.lse}) {
    expected->value.resize(static_cast<std::size_t>(element_count(expected->shape)));
    expected->bound.resize(expected->value.size());
  }
  parallel_for(threads, count, [&](std::int64_t head) {
    const ExpectedPrefill one =
        expect_prefill(prefill_reference(problem, first + head, rows), formats);
    place(all.out.value, one.out.value, head, count, row_count);
    place(all.out.bound, one.out.bound, head, count, row_count);
    place(all.lse.value, one.lse.value, head, count, row_count);
    place(all.lse.bound, one.lse.bound, head, count, row_count);
  });
  return all;
}

}  // namespace mladcp
