// Checks of host code before row kernels are launched: can rows be moved in vectors of `elements`?
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"

namespace mladcp {

// True when each view's last dim is dense and every row of it starts at a multiple of `elements`:
// address, outer strides. The last extent itself is the caller's matter.
bool rows_allow_vectors(std::initializer_list<TensorView> views, std::int64_t elements);

// Throws Unsupported naming tensor, rule and remedy unless rows_allow_vectors holds for the view.
void expect_aligned_rows(const TensorView& view, std::int64_t elements, const char* user);

}  // namespace mladcp
