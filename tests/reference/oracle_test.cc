#include "reference/oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tests/reference/oracle_problem.h"

namespace mladcp {
namespace {

TEST(OwnersByCounting, DealsRunsOfTheInterleaveInTurn) {
  EXPECT_EQ(owners_by_counting(9, 2, 1), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(owners_by_counting(10, 3, 2),
            (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1}));
  EXPECT_EQ(owners_by_counting(3, 4, 64), (std::vector<std::int32_t>{0, 0, 0}));
  EXPECT_TRUE(owners_by_counting(0, 2, 1).empty());
  EXPECT_THROW(owners_by_counting(1, 0, 1), InvalidArgument);
}

// The sums are stated in the header; here they are written out, one key at a time.
struct NaiveRow {
  std::vector<double> p, z, size;
  double mean = 0.0;
};

NaiveRow naive_row(const OracleProblem& problem, std::int64_t t, std::int64_t h, std::int64_t set) {
  NaiveRow row;
  const auto b = static_cast<std::size_t>(problem.request[t]);
  const std::vector<float> query = values_of(problem.query.select(0, t).select(0, h));
  const std::vector<float> keys = values_of(problem.keys[b]);
  const std::size_t width = query.size();
  double total = 0.0;
  for (std::int64_t k = 0; k < problem.visible[t]; ++k) {
    double z = 0.0, square = 0.0;
    for (std::size_t d = 0; d < width; ++d) {
      const double term = problem.softmax_scale * problem.query_scale * problem.key_scale *
                          query[d] * keys[k * width + d];
      z += term;
      square += term * term;
    }
    const bool inside = problem.owner.empty() || problem.owner[b][k] == set;
    row.z.push_back(z);
    row.size.push_back(std::sqrt(square) + std::fabs(z));
    row.p.push_back(inside ? std::exp(z) : 0.0);
    total += row.p.back();
  }
  for (std::size_t k = 0; k < row.p.size(); ++k) {
    if (total > 0.0) row.p[k] /= total;
    row.mean += row.p[k] * row.z[k];
  }
  return row;
}

TEST(Oracle, GivesTheSumsItPromisesForEverySet) {
  AttentionProblemShape shape;
  shape.visible = {{40}, {0}, {9, 23, 24}};
  shape.latent = 12;
  shape.query_dtype = DType::kE4M3;
  shape.q_scale = 2.0F;
  shape.k_scale = 0.5F;
  const AttentionProblem decode = make_attention_problem(shape);
  OracleProblem problem = oracle_problem(decode);
  problem.sets = 3;
  for (const TensorView& keys : problem.keys) {
    problem.owner.push_back(owners_by_counting(keys.size(0), problem.sets, 4));
  }
  const KeyErrors errors{0.01, 0.02, 0.001, 0.1};
  std::int64_t flushed_keys = 0;
  attend_exactly(problem, errors, 1, [&](const RowBlock& block, std::span<const SetSums> sums) {
    ASSERT_EQ(sums.size(), 3U);
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const std::int64_t t = (block.first + row) / shape.heads;
      const std::vector<float> keys = values_of(problem.keys[problem.request[t]]);
      for (std::int64_t set = 0; set < 3; ++set) {
        const SetSums& s = sums[set];
        const NaiveRow naive = naive_row(problem, t, (block.first + row) % shape.heads, set);
        double largest = 0.0, lse_sum = 0.0, logit_random = 0.0, mean_size = 0.0;
        double variance = 0.0, roundoff = 0.0;
        for (std::size_t k = 0; k < naive.p.size(); ++k) {
          largest = std::max(largest, naive.p[k]);
          if (naive.p[k] > 0.0) lse_sum += std::exp(naive.z[k]);
          logit_random += std::pow(naive.p[k] * errors.logit_random * naive.size[k], 2);
          mean_size += naive.p[k] * std::fabs(naive.z[k]);
        }
        ASSERT_NEAR(s.logit_random[row], logit_random, 1e-6 * logit_random);
        ASSERT_NEAR(s.mean_logit[row], mean_size, 1e-6 * mean_size);
        for (std::size_t k = 0; k < naive.p.size(); ++k) {
          if (naive.p[k] == 0.0) continue;
          variance += naive.p[k] * std::pow(naive.z[k] - naive.mean, 2);
          roundoff += std::max(errors.probability * naive.p[k], errors.floor * largest);
        }
        ASSERT_NEAR(s.deviation[row], std::sqrt(variance), 1e-6 * std::sqrt(variance));
        ASSERT_NEAR(s.roundoff[row], roundoff, 1e-6 * roundoff);
        if (lse_sum == 0.0) {
          ASSERT_TRUE(std::isinf(s.lse[row]) && s.lse[row] < 0) << "row " << row;
        } else {
          ASSERT_NEAR(s.lse[row], std::log(lse_sum), 1e-12);
        }
        for (std::int64_t l = 0; l < shape.latent; ++l) {
          double out = 0, magnitude = 0, square = 0, random = 0, flushed = 0, tilt = 0;
          for (std::size_t k = 0; k < naive.p.size(); ++k) {
            const double p = naive.p[k];
            if (p == 0.0) continue;
            const double v = shape.k_scale * keys[k * shape.width() + l];
            const double of_logit = errors.logit_random * naive.size[k];
            const bool flushes = p <= errors.flush * largest;
            const double e = flushes ? p * of_logit
                                     : std::max(p * std::hypot(of_logit, errors.probability),
                                                errors.floor * largest);
            out += p * v;
            magnitude += p * std::fabs(v);
            square += p * p * v * v;
            random += e * e * v * v;
            flushed += flushes ? std::max(p, 0x1p-126 * largest) * std::fabs(v) : 0.0;
            flushed_keys += flushes && l == 0 ? 1 : 0;
            tilt += p * (naive.z[k] - naive.mean) * v;
          }
          const std::size_t at = row * shape.latent + l;
          ASSERT_NEAR(s.out[at], out, 1e-12);
          ASSERT_NEAR(s.magnitude[at], magnitude, 1e-6 * magnitude);
          ASSERT_NEAR(s.square[at], square, 1e-6 * square);
          ASSERT_NEAR(s.random[at], random, 1e-6 * random);
          ASSERT_NEAR(s.flushed.empty() ? 0.0 : s.flushed[at], flushed, 1e-6 * magnitude);
          ASSERT_NEAR(s.tilt[at], std::fabs(tilt), 1e-5 * magnitude);
        }
      }
    }
  });
  EXPECT_GT(flushed_keys, 0) << "the case must have keys that flush";
}

TEST(Oracle, ResultsDoNotDependOnTheThreads) {
  const AttentionProblem decode = make_attention_problem({});
  const OracleProblem problem = oracle_problem(decode);
  const auto outs = [&](int threads) {
    std::vector<double> out(
        static_cast<std::size_t>(decode.rows() * decode.shape.heads * decode.shape.latent));
    attend_exactly(problem, {}, threads, [&](const RowBlock& block, std::span<const SetSums> sums) {
      std::copy(sums[0].out.begin(), sums[0].out.end(),
                out.begin() + block.first * decode.shape.latent);
    });
    return out;
  };
  EXPECT_EQ(outs(1), outs(3));
}

TEST(Oracle, MultipliesHeadsInFp64) {
  Numbers numbers(3);
  const Tensor in = random_tensor(DType::kBF16, {3, 2, 17}, "in", numbers);
  const Tensor weight = random_tensor(DType::kBF16, {2, 17, 5}, "weight", numbers);
  const HeadProducts products = multiply_heads_exactly(in, weight, 2);
  const auto x = values_of(in), w = values_of(weight);
  for (std::int64_t i = 0; i < 3 * 2 * 5; ++i) {
    const std::int64_t row = i / 5, h = row % 2;
    double value = 0, magnitude = 0, square = 0;
    for (std::int64_t k = 0; k < 17; ++k) {
      const double term = double{x[row * 17 + k]} * w[(h * 17 + k) * 5 + i % 5];
      value += term;
      magnitude += std::fabs(term);
      square += term * term;
    }
    ASSERT_NEAR(products.value[i], value, 1e-12);
    ASSERT_NEAR(products.magnitude[i], magnitude, 1e-12);
    ASSERT_NEAR(products.square[i], square, 1e-12);
  }
}

TEST(Oracle, StoresWhatACacheStores) {
  const Tensor kv_c = filled(DType::kBF16, {1, 3}, "kv_c", [](std::int64_t i) {
    return std::vector<float>{3.0F, -0.0F, 1e9F}[static_cast<std::size_t>(i)];
  });
  const Tensor k_pe = filled(DType::kBF16, {1, 1}, "k_pe", [](std::int64_t) { return 0.5F; });
  EXPECT_EQ(values_of(stored_rows(kv_c, k_pe, DType::kE4M3, 2.0F)),
            (std::vector<float>{1.5F, -0.0F, 448.0F, 0.25F}));
  EXPECT_EQ(values_of(stored_rows(kv_c, k_pe, DType::kBF16, 2.0F))[0], 3.0F);
}

TEST(Oracle, RefusesRowsThatSeeMoreThanThereIs) {
  const AttentionProblem decode = make_attention_problem({});
  OracleProblem problem = oracle_problem(decode);
  problem.visible[0] += 1;
  EXPECT_THROW(attend_exactly(problem, {}, 1, [](const RowBlock&, std::span<const SetSums>) {}),
               InvalidArgument);
}

}  // namespace
}  // namespace mladcp
