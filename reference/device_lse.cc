#include "reference/device_lse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/hopper_fp8.h"

namespace mladcp {
namespace {

std::span<const Float8E4M3> codes_of(const TensorView& view) {
  expect_dtype(view, DType::kE4M3);
  expect_contiguous(view);
  return {view.as<const Float8E4M3>(), static_cast<std::size_t>(view.elements())};
}

double log_sum_exp(std::span<const float> dots, double scale) {
  if (dots.empty()) return -std::numeric_limits<double>::infinity();
  const double max = scale * double{*std::max_element(dots.begin(), dots.end())};
  double sum = 0.0;
  for (const float dot : dots) sum += std::exp(scale * double{dot} - max);
  return max + std::log(sum);
}

}  // namespace

Expected expect_device_lse(const OracleProblem& problem) {
  if (problem.sets != 1) throw InvalidArgument("the device LSE is that of one set of keys");
  const std::int64_t rows = problem.query.size(0);
  const std::int64_t heads = problem.query.size(1);
  const std::int64_t width = problem.query.size(2);
  const std::span<const Float8E4M3> query = codes_of(problem.query);
  const double scale = problem.softmax_scale * problem.query_scale * problem.key_scale;
  Expected expected{{rows, heads}, {}, {}};
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const auto keys = static_cast<std::size_t>(std::max<std::int64_t>(0, problem.visible[at]));
    const TensorView& key_rows = problem.keys[static_cast<std::size_t>(problem.request[at])];
    std::vector<float> dots(static_cast<std::size_t>(heads) * keys);
    hopper_product(dots,
                   query.subspan(at * static_cast<std::size_t>(heads * width),
                                 static_cast<std::size_t>(heads * width)),
                   codes_of(key_rows).first(keys * static_cast<std::size_t>(width)), width);
    for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
      const double lse = log_sum_exp(std::span<const float>(dots).subspan(h * keys, keys), scale);
      expected.value.push_back(lse);
      expected.bound.push_back(std::isfinite(lse) ? 2e-6 + 0x1p-22 * std::fabs(lse) : 0.0);
    }
  }
  return expected;
}

}  // namespace mladcp
