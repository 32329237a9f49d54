// The FP64 oracle of chunked prefill: the whole unsharded problem, one softmax per query row over
// [context rows | new rows], causal among the new. It knows nothing of ranks, chunks or pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/prefill_plan.h"
#include "core/tensor.h"

namespace mladcp {

// Host tensors of any float dtype. The rows decide what is measured: given as dequantised from the
// cache, they judge the implementation; given as they were before quantising, the number format.
struct PrefillProblem {
  std::span<const PrefillRequest> requests;  // [B]
  float softmax_scale = 1.0F;
  TensorView query;         // [T, A, P + R], all A heads
  TensorView context_rows;  // [sum of contexts, D]: requests in order, positions in order
  TensorView new_rows;      // [T, D]
  TensorView w_uk;          // [A, P, L]
  TensorView w_uv;          // [A, L, Vd]
};

// One head's result for some query rows, and the sums that error bounds are made of. With softmax
// weights p_j, logits l_j, values v_j of the row's keys j:
//   sigma_j^2 = softmax_scale^2 * sum over d < P of (q_d * k_jd)^2
//   a_j       = softmax_scale   * (sum over d of |q_d * k_jd| + |c_j| |q o w_uk|)
//   s_j       = |v_j| + |c_j| |w_uv|
// The second terms of a and s are what sums inside the projections of the latent c_j may reach:
// keys and values are small where these cancel, their rounding errors are not. w_uk and w_uv stand
// for the norms of a head's weights, row by row and column by column.
struct PrefillReference {
  std::vector<double> out;             // [rows, Vd]
  std::vector<double> value_squares;   // [rows, Vd]  sum p^2 v^2
  std::vector<double> logit_squares;   // [rows, Vd]  sum p^2 sigma^2 (v - out)^2
  std::vector<double> magnitude;       // [rows, Vd]  sum p s
  std::vector<double> logit_weighted;  // [rows, Vd]  sum p a s
  std::vector<double> flushed;         // [rows, Vd]  2^-126 sum s over keys with p at most 2^-126
  std::vector<double> lse;             // [rows] natural
  std::vector<double> lse_squares;     // [rows]  sum p^2 sigma^2
  std::vector<double> lse_magnitude;   // [rows]  sum p a
  std::vector<std::int64_t> keys;      // [rows] how many a row sees
};

// Keys begin .. end - 1 of a request, counted over its context and then its new rows.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// One head of a problem, for some query rows. Keys and values are projected once, for everything
// that is asked of the head.
class PrefillHead {
 public:
  // rows: rising indices into [0, T). InvalidArgument when the tensors do not belong together. The
  // problem's tensors may go afterwards.
  PrefillHead(const PrefillProblem& problem, std::int64_t head, std::span<const std::int64_t> rows);

  // One softmax a row over the keys of ranges[b], b the row's request, that the row sees: context
  // and new rows up to its own. A row that sees none: out 0, lse -inf. InvalidArgument when the
  // ranges do not fit the requests.
  PrefillReference attend(std::span<const KeyRange> ranges) const;
  // Over all keys.
  PrefillReference whole() const;

 private:
  struct Request;  // its projected keys and values, and the rows asked about

  double scale_;
  std::vector<std::shared_ptr<const Request>> requests_;
};

// PrefillHead's whole().
PrefillReference prefill_reference(const PrefillProblem& problem, std::int64_t head,
                                   std::span<const std::int64_t> rows);

}  // namespace mladcp
