#include "reference/device_lse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/hopper_fp8.h"
#include "reference/parallel_for.h"

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

// A request's keys of one set, in position order.
struct KeysOfSet {
  std::vector<std::int64_t> positions;
  std::vector<Float8E4M3> codes;  // [keys, D]
};

KeysOfSet keys_of_set(const OracleProblem& problem, std::size_t request, std::int64_t set) {
  const TensorView& rows = problem.keys[request];
  const std::span<const Float8E4M3> codes = codes_of(rows);
  const std::int64_t width = problem.query.size(2);
  KeysOfSet keys;
  for (std::int64_t p = 0; p < rows.size(0); ++p) {
    const bool kept =
        problem.owner.empty() || problem.owner[request][static_cast<std::size_t>(p)] == set;
    if (!kept) continue;
    keys.positions.push_back(p);
    const auto row =
        codes.subspan(static_cast<std::size_t>(p * width), static_cast<std::size_t>(width));
    keys.codes.insert(keys.codes.end(), row.begin(), row.end());
  }
  return keys;
}

}  // namespace

Expected expect_device_lse(const OracleProblem& problem, const NumericsProfile& profile,
                           std::int64_t set, int threads) {
  if (set < 0 || set >= problem.sets) {
    throw InvalidArgument("set = " + std::to_string(set) + ": the problem has sets 0 .. " +
                          std::to_string(problem.sets - 1));
  }
  const std::int64_t rows = problem.query.size(0);
  const std::int64_t heads = problem.query.size(1);
  const std::int64_t width = problem.query.size(2);
  const std::span<const Float8E4M3> query = codes_of(problem.query);
  const double scale = problem.softmax_scale * problem.query_scale * problem.key_scale;
  std::vector<KeysOfSet> keys;
  for (std::size_t b = 0; b < problem.keys.size(); ++b) {
    keys.push_back(keys_of_set(problem, b, set));
  }
  const auto count = static_cast<std::size_t>(rows * heads);
  Expected expected{{rows, heads}, std::vector<double>(count), std::vector<double>(count)};
  // Blocks of heads of one row: the model lays the keys out once for all of a block.
  constexpr std::int64_t kHeads = 16;
  const std::int64_t blocks = (heads + kHeads - 1) / kHeads;
  parallel_for(threads, rows * blocks, [&](std::int64_t i) {
    const auto t = static_cast<std::size_t>(i / blocks);
    const std::int64_t first = i / blocks * heads + i % blocks * kHeads;
    const std::int64_t block = std::min(kHeads, heads - i % blocks * kHeads);
    const KeysOfSet& kept = keys[static_cast<std::size_t>(problem.request[t])];
    const auto end =
        std::lower_bound(kept.positions.begin(), kept.positions.end(), problem.visible[t]);
    const auto seen = static_cast<std::size_t>(end - kept.positions.begin());
    const double sum_error = one_way_sum_error(profile, static_cast<std::int64_t>(seen));
    std::vector<float> dots(static_cast<std::size_t>(block) * seen);
    hopper_product(dots,
                   query.subspan(static_cast<std::size_t>(first * width),
                                 static_cast<std::size_t>(block * width)),
                   std::span(kept.codes).first(seen * static_cast<std::size_t>(width)), width);
    for (std::int64_t h = 0; h < block; ++h) {
      const auto at = static_cast<std::size_t>(first + h);
      const double lse = log_sum_exp(
          std::span<const float>(dots).subspan(static_cast<std::size_t>(h) * seen, seen), scale);
      expected.value[at] = lse;
      expected.bound[at] = std::isfinite(lse) ? 2e-6 + 0x1p-22 * std::fabs(lse) + sum_error : 0.0;
    }
  });
  return expected;
}

}  // namespace mladcp
