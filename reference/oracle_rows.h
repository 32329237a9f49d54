// Elements of host tensors as fp64, for the oracle alone: it shares no conversion loop with the
// operations it judges.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace mladcp {

// values[0 .. n) = factor * the row of `view` at `offset`, n = the last extent, any last stride.
void load_row_fp64(double* values, const TensorView& view, std::int64_t offset,
                   double factor = 1.0);

}  // namespace mladcp
