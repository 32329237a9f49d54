#include "reference/prefill_bounds.h"

#include <cmath>

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

}  // namespace

PrefillBounds prefill_bounds(const PrefillReference& reference, const PrefillFormats& formats) {
  PrefillBounds bounds;
  const std::size_t rows = reference.lse.size();
  const std::size_t width = rows == 0 ? 0 : reference.out.size() / rows;
  bounds.out.reserve(reference.out.size());
  bounds.lse.reserve(rows);
  const double projection2 = squared(formats.projection_unit);
  for (std::size_t row = 0; row < rows; ++row) {
    const double chain = chain_of(reference.lse[row], reference.keys[row], formats.chunks);
    bounds.lse.push_back(4.0 * formats.projection_unit * std::sqrt(reference.lse_squares[row]) +
                         formats.fp32_unit * (16.0 * reference.lse_magnitude[row] + chain));
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      const double out = std::abs(reference.out[i]);
      const double squares =
          projection2 * (reference.logit_squares[i] + reference.value_squares[i]) +
          squared(formats.p_unit) * reference.value_squares[i];
      const double fp32 =
          16.0 * (reference.logit_weighted[i] + out * reference.lse_magnitude[row]) +
          chain * reference.magnitude[i];
      bounds.out.push_back(formats.out_unit * out + 4.0 * std::sqrt(squares) +
                           formats.fp32_unit * fp32);
    }
  }
  return bounds;
}

}  // namespace mladcp
