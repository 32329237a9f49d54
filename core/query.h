// The query between stages: a pair (absorbed latent part, RoPE part), or one tensor.
#pragma once

#include <variant>

#include "core/tensor.h"

namespace mladcp {

struct QueryPair {
  TensorView latent;  // [T, H, L] bf16
  TensorView rope;    // [T, H, R] bf16
};

// A single tensor is `[T, H, D]`: e4m3 (quantised) or bf16 (concatenated for the gather).
using Query = std::variant<QueryPair, TensorView>;

}  // namespace mladcp
