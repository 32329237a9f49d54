// A decode problem of the host tests judged by the FP64 oracle, for heads spread over all of them,
// within the bounds of a numerics profile.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "reference/error_bounds.h"
#include "tests/reference/attention_problem.h"

namespace mladcp {

// Every `step`-th head, the last among them: a strided view [T, heads, ...].
inline TensorView every_head(const TensorView& view, std::int64_t step) {
  TensorView result =
      view.narrow(1, (view.shape[1] - 1) % step, view.shape[1] - (view.shape[1] - 1) % step);
  result.shape[1] = (result.shape[1] + step - 1) / step;
  result.strides[1] *= step;
  return result;
}

// As the oracle sees it, on every `head_step`-th head; views of p.
inline OracleProblem oracle_problem(const AttentionProblem& p, std::int64_t head_step) {
  const AttentionProblemShape& s = p.shape;
  OracleProblem oracle;
  oracle.query = every_head(p.query, head_step);
  for (const Tensor& keys : p.keys) oracle.keys.push_back(keys.view());
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    oracle.request.push_back(p.request.as<std::int32_t>()[t]);
    oracle.visible.push_back(p.visible.as<std::int32_t>()[t]);
  }
  oracle.latent = s.latent;
  oracle.softmax_scale = s.softmax_scale;
  oracle.query_scale = s.query_dtype == DType::kE4M3 ? s.q_scale : 1.0;
  oracle.key_scale = s.cache_dtype == DType::kE4M3 ? s.k_scale : 1.0;
  return oracle;
}

inline ExpectedAttention expected_attention(const AttentionProblem& p,
                                            const NumericsProfile& profile, std::int64_t head_step,
                                            int threads = 16) {
  return expect_decode(oracle_problem(p, head_step), profile, {}, threads).per_set[0];
}

// Returns the larger share of a bound that out and lse used.
inline double expect_within_bounds(const TensorView& out, const TensorView& lse,
                                   const ExpectedAttention& expected, std::int64_t head_step) {
  const Comparison out_comparison = compare(every_head(out, head_step), expected.out);
  const Comparison lse_comparison = compare(every_head(lse, head_step), expected.lse);
  EXPECT_TRUE(out_comparison.pass()) << out_comparison;
  EXPECT_TRUE(lse_comparison.pass()) << lse_comparison;
  return std::max(out_comparison.worst_ratio, lse_comparison.worst_ratio);
}

}  // namespace mladcp
