// A decode problem of the tests as the oracle sees it.
#pragma once

#include "reference/oracle.h"
#include "tests/reference/attention_problem.h"

namespace mladcp {

// Refers to the problem's tensors.
inline OracleProblem oracle_problem(const AttentionProblem& decode) {
  OracleProblem problem;
  problem.query = decode.query;
  for (const Tensor& keys : decode.keys) problem.keys.push_back(keys);
  for (std::int64_t t = 0; t < decode.rows(); ++t) {
    problem.request.push_back(decode.request.as<std::int32_t>()[t]);
    problem.visible.push_back(decode.visible.as<std::int32_t>()[t]);
  }
  const AttentionProblemShape& shape = decode.shape;
  problem.latent = shape.latent;
  problem.softmax_scale = shape.softmax_scale;
  problem.query_scale = shape.query_dtype == DType::kE4M3 ? shape.q_scale : 1.0F;
  problem.key_scale = shape.cache_dtype == DType::kE4M3 ? shape.k_scale : 1.0F;
  return problem;
}

}  // namespace mladcp
