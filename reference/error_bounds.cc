#include "reference/error_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/ceil_div.h"
#include "core/error.h"

namespace mladcp {
namespace {

constexpr double kFp32 = 0x1p-24;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Independent errors e_i add up to at most this times sqrt(sum e_i^2): 4, or sqrt(n), which is the
// worst case (Cauchy-Schwarz), where that is less.
double spread(std::int64_t terms) { return std::min(4.0, std::sqrt(static_cast<double>(terms))); }

Expected make_expected(const Shape& shape) {
  const auto count = static_cast<std::size_t>(element_count(shape));
  return {shape, std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)};
}

// One row's attention to one set: what its bounds are made of.
struct RowOfSet {
  const SetSums& sums;
  std::size_t row;
  std::int64_t latent;

  std::int64_t keys() const { return sums.keys[row]; }
  double lse() const { return sums.lse[row]; }
  double max_logit() const { return std::fabs(sums.max_logit[row]); }
  double logit_random() const { return std::sqrt(double{sums.logit_random[row]}); }
  std::size_t at(std::int64_t l) const { return row * static_cast<std::size_t>(latent) + l; }
};

// The chain lengths of P times V over n keys.
struct Chains {
  double count, steps;  // chains in a walk, steps in a chain

  Chains(const NumericsProfile& profile, std::int64_t keys) {
    const std::int64_t length = profile.chain_keys > 0 ? std::min(profile.chain_keys, keys) : keys;
    count = static_cast<double>(ceil_div(keys, std::max<std::int64_t>(1, length)));
    steps = static_cast<double>(ceil_div(length, profile.values.step));
  }
};

double logit_shrink(const NumericsProfile& profile, std::int64_t width) {
  const auto steps = static_cast<double>(ceil_div(width, profile.logits.step));
  return profile.logits.toward_zero * (steps + 1) / 2;
}

// Relative error of a factor exp(z - max): its own, and the roundings of z, max and their
// difference.
double exponential_error(const NumericsProfile& profile, double max_logit) {
  return profile.exp_error + 2 * kFp32 * (1 + max_logit);
}

// What roundings of P that go together add to the output. With delta(z) the relative error of a P,
// split it into a + b (z - mean z) and a rest that is taken as independent. |a| and |b| deviation
// are at most the roundoff u. Over logits that spread wider than u, delta, whose sign changes
// within 2 u, averages out: what stays is a share u / deviation.
double common_rounding(const NumericsProfile& profile, const RowOfSet& r, std::size_t at) {
  const double u = r.sums.roundoff[r.row];
  const double deviation = r.sums.deviation[r.row];
  if (deviation == 0.0) return 0.0;  // equal logits: every P is a power of two
  const double common =
      u * std::min(1.0, u / deviation) * (std::fabs(r.sums.out[at]) + r.sums.tilt[at] / deviation);
  // Without subnormal P none errs by more than u.
  const bool relative = profile.probability.smallest_normal == 0.0;
  return relative ? std::min(common, u * r.sums.magnitude[at]) : common;
}

// Roundings of the fp32 sum of P over n keys, in units of 2^-24 of it.
double sum_roundings(const NumericsProfile& profile, std::int64_t keys, double deviations) {
  return std::max(deviations * std::sqrt(static_cast<double>(keys)),
                  one_way_sum_error(profile, keys) / kFp32);
}

double out_bound(const NumericsProfile& profile, double shrink, const RowOfSet& r, std::int64_t l) {
  const std::size_t at = r.at(l);
  const double out = std::fabs(r.sums.out[at]);
  const double root_square = std::sqrt(r.sums.square[at]);
  const double magnitude = r.sums.magnitude[at];
  const Chains chains(profile, r.keys());
  const Accumulator& sum = profile.values;

  // P's own errors; an error of a logit moves the sum of P as well, hence the |out|.
  double bound = spread(r.keys()) * (std::sqrt(r.sums.random[at]) + out * r.logit_random() +
                                     2 * kFp32 * r.max_logit() * root_square);
  bound += common_rounding(profile, r, at);
  bound += shrink * r.sums.tilt[at];
  if (!r.sums.flushed.empty()) bound += r.sums.flushed[at];

  // The sum of P V: partial sums wander no further than `partial`, all chains together `all`.
  const double partial = std::min(magnitude, out + 4 * root_square);
  const double all = chains.count > 1
                         ? std::min(magnitude, out + (std::sqrt(chains.count) + 4) * root_square)
                         : partial;
  bound += sum.toward_zero * (chains.steps + 1) / 2 * all;
  bound += 4 * (sum.random * std::sqrt(chains.steps) + kFp32 * std::sqrt(chains.count)) * partial;
  // Splits, merged by weights that are exponentials; then the division by the sum of P.
  bound += 4 * exponential_error(profile, r.max_logit()) * partial;
  bound += out * kFp32 * (8 + sum_roundings(profile, r.keys(), 4));
  return bound;
}

double lse_bound(const NumericsProfile& profile, double shrink, const RowOfSet& r) {
  return spread(r.keys()) * r.logit_random() + shrink * r.sums.mean_logit[r.row] +
         2 * exponential_error(profile, r.max_logit()) +
         kFp32 * (4 + sum_roundings(profile, r.keys(), 1) + 2 * std::fabs(r.lse()));
}

// Fills the rows of one block.
class Collector {
 public:
  Collector(const OracleProblem& problem, const NumericsProfile& profile,
            const CombineRounding& combine)
      : profile_(profile),
        combine_(combine),
        latent_(problem.latent),
        shrink_(logit_shrink(profile, problem.query.size(2))),
        partial_roundoff_(unit_roundoff(combine.partial)),
        sent_roundoff_(unit_roundoff(combine.sent)),
        out_roundoff_(unit_roundoff(combine.out)) {
    const Shape rows{problem.query.size(0), problem.query.size(1)};
    const Shape outs{problem.query.size(0), problem.query.size(1), problem.latent};
    for (std::int64_t set = 0; set < problem.sets; ++set) {
      result.per_set.push_back({make_expected(outs), make_expected(rows)});
    }
    result.combined = {make_expected(outs), make_expected(rows)};
    // Rows of no request, and requests without keys: nothing is visible.
    for (ExpectedAttention& set : result.per_set) {
      std::fill(set.lse.value.begin(), set.lse.value.end(), kMinusInfinity);
    }
    std::fill(result.combined.lse.value.begin(), result.combined.lse.value.end(), kMinusInfinity);
  }

  void collect(const RowBlock& block, std::span<const SetSums> sums) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const auto at = static_cast<std::size_t>(block.first + row);
      for (std::size_t set = 0; set < sums.size(); ++set) {
        collect_set(at, {sums[set], static_cast<std::size_t>(row), latent_}, result.per_set[set]);
      }
      combine_row(at);
    }
  }

  ExpectedDecode result;

 private:
  void collect_set(std::size_t row, const RowOfSet& r, ExpectedAttention& expected) const {
    if (r.keys() == 0) return;
    expected.lse.value[row] = r.lse();
    expected.lse.bound[row] = lse_bound(profile_, shrink_, r);
    for (std::int64_t l = 0; l < latent_; ++l) {
      const std::size_t at = row * static_cast<std::size_t>(latent_) + l;
      const double value = r.sums.out[r.at(l)];
      const double bound = out_bound(profile_, shrink_, r, l);
      expected.out.value[at] = value;
      expected.out.bound[at] = bound + rounding(partial_roundoff_, value, bound);
    }
  }

  // Weights of the sets by their LSE, in fp64, and the merged LSE with its bound.
  std::vector<double> weigh(std::size_t row, Expected& lse) const {
    double max = kMinusInfinity;
    for (const ExpectedAttention& set : result.per_set) max = std::fmax(max, set.lse.value[row]);
    std::vector<double> weights(result.per_set.size(), 0.0);
    if (max == kMinusInfinity) return weights;
    double total = 0.0;
    for (std::size_t set = 0; set < weights.size(); ++set) {
      weights[set] = std::exp(result.per_set[set].lse.value[row] - max);
      total += weights[set];
    }
    lse.value[row] = max + std::log(total);
    for (std::size_t set = 0; set < weights.size(); ++set) {
      weights[set] /= total;
      lse.bound[row] += weights[set] * result.per_set[set].lse.bound[row];
    }
    lse.bound[row] += 8 * kFp32 * (1 + std::fabs(lse.value[row]));
    return weights;
  }

  void combine_row(std::size_t row) {
    const std::vector<double> weights = weigh(row, result.combined.lse);
    const double lse = result.combined.lse.value[row];
    const double weight_error = std::isfinite(lse) ? 8 * kFp32 * (1 + std::fabs(lse)) : 0.0;
    for (std::int64_t l = 0; l < latent_; ++l) {
      const std::size_t at = row * static_cast<std::size_t>(latent_) + l;
      double value = 0.0, bound = 0.0, magnitude = 0.0;
      for (std::size_t set = 0; set < weights.size(); ++set) {
        value += weights[set] * result.per_set[set].out.value[at];
      }
      for (std::size_t set = 0; set < weights.size(); ++set) {
        const ExpectedAttention& partial = result.per_set[set];
        bound += KeyErrors::kSmallestExponential * std::fabs(partial.out.value[at]);
        if (weights[set] == 0.0) continue;
        magnitude += weights[set] * std::fabs(partial.out.value[at]);
        // An error of a set's LSE shifts weight between this set and the rest.
        bound += weights[set] * (partial.out.bound[at] +
                                 std::fabs(partial.out.value[at] - value) * partial.lse.bound[row]);
      }
      bound += weight_error * magnitude;
      if (combine_.weighted_before) {
        bound += sent_roundoff_ * (1 + combine_.sum_roundings) * (magnitude + bound);
      }
      result.combined.out.value[at] = value;
      result.combined.out.bound[at] =
          magnitude == 0.0 && bound == 0.0 ? 0.0 : bound + rounding(out_roundoff_, value, bound);
    }
  }

  const NumericsProfile& profile_;
  const CombineRounding& combine_;
  const std::int64_t latent_;
  const double shrink_, partial_roundoff_, sent_roundoff_, out_roundoff_;
};

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kE4M3:
      return 0x1p-4;
    default:
      throw InvalidArgument("dtype " + std::string(name(dtype)) + " has no unit roundoff here");
  }
}

double rounding(double unit, double value, double error) {
  return unit * (std::fabs(value) + error) + kHalfSubnormal;
}

Expected expect_products(const HeadProducts& products, DType out, const Accumulator& accumulator) {
  Expected expected{products.shape, products.value, std::vector<double>(products.value.size())};
  const auto steps = static_cast<double>(ceil_div(products.terms, accumulator.step));
  const double unit = unit_roundoff(out);
  for (std::size_t i = 0; i < products.value.size(); ++i) {
    const double value = std::fabs(products.value[i]);
    const double partial =
        std::min(products.magnitude[i], value + 4 * std::sqrt(products.square[i]));
    const double random = steps <= 16 ? steps * accumulator.random * products.magnitude[i]
                                      : 4 * accumulator.random * std::sqrt(steps) * partial;
    const double bound = random + accumulator.toward_zero * (steps + 1) / 2 * partial;
    expected.bound[i] = bound + rounding(unit, value, bound);
  }
  return expected;
}

// Each addition rounds by 2^-24 of what the sum has reached: half of it on average.
double one_way_sum_error(const NumericsProfile& profile, std::int64_t keys) {
  if (profile.sum_keys == 0) return 0.0;
  return kFp32 * static_cast<double>(keys) / static_cast<double>(2 * profile.sum_keys);
}

KeyErrors key_errors(const NumericsProfile& profile, std::int64_t width) {
  const auto steps = static_cast<double>(ceil_div(width, profile.logits.step));
  const ProbabilityFormat& p = profile.probability;
  KeyErrors errors;
  // Two more roundings: the scale, and the difference to the maximum.
  errors.logit_random = std::hypot(profile.logits.random * std::sqrt(steps), 2 * kFp32);
  errors.probability = std::hypot(profile.exp_error, p.roundoff);
  errors.floor = std::ldexp(p.smallest_normal * p.roundoff, -p.offset);
  errors.flush = std::max(std::ldexp(p.flush, -p.offset), KeyErrors::kSmallestExponential);
  return errors;
}

ExpectedDecode expect_decode(const OracleProblem& problem, const NumericsProfile& profile,
                             const CombineRounding& combine, int threads) {
  Collector collector(problem, profile, combine);
  attend_exactly(problem, key_errors(profile, problem.query.size(2)), threads,
                 [&](const RowBlock& block, std::span<const SetSums> sums) {
                   collector.collect(block, sums);
                 });
  return std::move(collector.result);
}

}  // namespace mladcp
