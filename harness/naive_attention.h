// A plain decode attention for fault injection: one loop over keys, in which a fault may change how
// a key is weighted, how P is rounded and how the sum of P V is accumulated. Slow and simple.
#pragma once

#include <cstdint>
#include <functional>

#include "harness/fault_variations.h"

namespace mladcp {

struct NaiveAttention {
  // Times a key counts for a row of a head; 1 for every visible key, 0 beyond, unless given.
  std::function<double(std::int64_t row, std::int64_t head, std::int64_t key, std::int64_t visible)>
      weight;
  // P = exp(logit - max) in the format it is multiplied in; the sum of P keeps fp32.
  std::function<float(float p)> round_p;
  // The accumulator of P V after one chain step of 32 keys; fp64 sums unless given.
  std::function<float(float accumulator, float step_sum)> accumulate;
  // After so many keys the accumulator is added to an fp32 total and starts anew; 0: never.
  std::int64_t chain_keys = 0;
  // Which cache column holds latent channel c.
  std::function<std::int64_t(std::int64_t channel)> value_column;
  double logit_factor = 1.0;

  // Computes out and lse of the call, device tensors included.
  void run(const OpFunctions::Decode& call) const;
};

}  // namespace mladcp
