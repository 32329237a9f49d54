// The FP64 oracle: the whole, unsharded problem from global tensors. It judges everything else and
// therefore shares only data types with core/: where it needs to know which rank keeps a key it
// counts, and what a cache stores it computes anew.
//
// Two references come out of one computation. `quantised`: keys as stored and the query as the
// kernel saw it; judges kernels. `exact`: the inputs before any rounding; measures what FP8 costs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace mladcp {

// Which set (rank) keeps each of `length` positions: `interleave` consecutive ones each, in turn.
std::vector<std::int32_t> owners_by_counting(std::int64_t length, std::int64_t world_size,
                                             std::int64_t interleave);

// What a cache of this dtype stores for rows [kv_c | k_pe]: kv_c [S, L], k_pe [S, R] bf16, result
// [S, D] (e4m3: codes).
Tensor stored_rows(const TensorView& kv_c, const TensorView& k_pe, DType cache_dtype,
                   float k_scale);

// out[t, h, y] = sum over x of in[t, h, x] * weight[h, x, y], with the sums its error depends on.
struct HeadProducts {
  Shape shape;  // [T, H, Y]
  std::vector<double> value;
  std::vector<double> magnitude;  // sum of |in * weight|
  std::vector<double> square;     // sum of (in * weight)^2
  std::int64_t terms = 0;         // X
};
// in [T, H, X] and weight [H, X, Y] of any floating dtype, any strides.
HeadProducts multiply_heads_exactly(const TensorView& in, const TensorView& weight, int threads);

// One attention problem, global. Heads are those of all ranks.
struct OracleProblem {
  TensorView query;                   // [T, H, D] e4m3, bf16, fp32 or fp64
  std::vector<TensorView> keys;       // per request [S, D], position order; e4m3, bf16, fp32, fp64
  std::vector<std::int32_t> request;  // [T]
  std::vector<std::int64_t> visible;  // [T] row t sees positions below this
  std::int64_t latent = 0;            // the first columns of a key are its value
  double softmax_scale = 1.0;
  double query_scale = 1.0;  // what one unit of the query is worth: q_scale for codes
  double key_scale = 1.0;    // k_scale for codes
  // Per request, the set that keeps each position, 0 .. sets - 1, or -1 to leave it out. Empty: all
  // keys form set 0.
  std::vector<std::vector<std::int32_t>> owner;
  std::int64_t sets = 1;
};

// Per-key error sizes, from a NumericsProfile (error_bounds.h): P of key j errs by
//   sqrt((logit_random * g)^2 + probability^2) * p, at least floor of the largest p of the set;
// what is at most `flush` of the largest may become 0. g_j = sqrt(sum (q k)^2) * scale + |z|.
struct KeyErrors {
  // Of the largest p: below the normal numbers of fp32 an exponential may be flushed to 0, or be
  // held just below 2^-126 however small it is.
  static constexpr double kSmallestExponential = 0x1p-126;

  double logit_random = 0.0;
  double probability = 0.0;
  double floor = 0.0;
  double flush = 0.0;
};

// What one block of query rows sees in one set of keys; rows [first, first + rows) of the T * H
// query rows, row t * H + h. Arrays [rows, L] or [rows]. p sums to 1 over the set; v are values.
struct SetSums {
  std::vector<double> out;  // sum p v
  std::vector<double> lse;  // natural; -inf for no key
  std::vector<double> max_logit;
  std::vector<std::int64_t> keys;  // visible keys of the set
  std::vector<float> magnitude;    // sum p |v|
  std::vector<double> square;      // sum (p v)^2: squares of what fp32 holds need not fit it
  std::vector<double> random;      // sum (e v)^2, e the error of p by KeyErrors
  // sum max(p, kSmallestExponential of the largest) |v| over keys that flush; empty when none does
  std::vector<float> flushed;
  std::vector<float> tilt;          // |sum p (z - mean z) v|: d out / d log(logit scale)
  std::vector<float> logit_random;  // [rows] sum (p * logit_random * g)^2
  std::vector<float> mean_logit;    // [rows] sum p |z|
  std::vector<float> deviation;     // [rows] of the logits: sqrt(sum p (z - mean z)^2)
  std::vector<float> roundoff;      // [rows] of P: sum max(probability * p, floor of the largest p)
};

struct RowBlock {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

// Calls visit(block, sums of every set) for disjoint blocks that cover all T * H rows of requests
// that have any; from several threads at once. InvalidArgument when shapes do not fit.
void attend_exactly(const OracleProblem& problem, const KeyErrors& errors, int threads,
                    const std::function<void(const RowBlock&, std::span<const SetSums>)>& visit);

}  // namespace mladcp
