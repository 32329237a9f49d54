// What strided movement kernels share: views brought to few dims, and the widest access they allow.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace mladcp {

// Drops dims of extent 1 and merges neighbours that lie behind each other in every view. The views
// have one shape; afterwards too, of rank at least 1.
void collapse_dims(std::span<TensorView> views);

// Whether `elements` neighbours along the last dim can be one access of each view: unit stride,
// extent and the other strides divisible, addresses aligned to min(16, elements * size).
bool allows_vectors(std::span<const TensorView> views, std::int64_t elements);

}  // namespace mladcp
