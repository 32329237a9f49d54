// The LSE merge law, once. Partials (o_n, l_n) over disjoint key sets merge as
//   m = max l_n (0 if that is -inf);  e_n = l_n == -inf ? 0 : exp(l_n - m);  l = m + log(sum e_n)
//   w_n = e_n == 0 ? 0 : e_n / sum e;  o = sum (w_n == 0 ? 0 : w_n * o_n)
// The selects are needed: 0 * NaN and inf - inf are not 0. NaN and +inf count as empty here; the
// harness does not tolerate them (it checks that an LSE is finite exactly when a key is visible).
#pragma once

#include <cmath>
#include <limits>

#include "core/kv_sharding.h"

namespace mladcp {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

MLADCP_HOST_DEVICE inline bool is_empty_lse(float lse) {
  return !(lse < std::numeric_limits<float>::infinity()) ||
         lse == -std::numeric_limits<float>::infinity();
}

// Reads lse_at(n) for n = 0 .. count - 1, in order. weight(n) and lse() as in the law above.
class LseMerge {
 public:
  template <typename LseAt>
  MLADCP_HOST_DEVICE LseMerge(int count, const LseAt& lse_at) {
    bool any = false;
    for (int n = 0; n < count; ++n) {
      const float lse = lse_at(n);
      if (is_empty_lse(lse)) continue;
      max_ = any && max_ > lse ? max_ : lse;
      any = true;
    }
    for (int n = 0; n < count; ++n) sum_ += exponential(lse_at(n));
  }

  MLADCP_HOST_DEVICE float weight(float lse) const {
    const float e = exponential(lse);
    return e == 0.0F ? 0.0F : e / sum_;
  }
  MLADCP_HOST_DEVICE float lse() const {
    return sum_ == 0.0F ? -std::numeric_limits<float>::infinity() : max_ + std::log(sum_);
  }

 private:
  MLADCP_HOST_DEVICE float exponential(float lse) const {
    return is_empty_lse(lse) ? 0.0F : std::exp(lse - max_);
  }

  float max_ = 0.0F;
  float sum_ = 0.0F;
};

// w == 0 ? 0 : w * o
MLADCP_HOST_DEVICE inline float weighted(float weight, float value) {
  return weight == 0.0F ? 0.0F : weight * value;
}

}  // namespace mladcp
