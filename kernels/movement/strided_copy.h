// Copies between views of one shape and any strides: the axis moves of collectives.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

// destination[i, j, ...] = source[i, j, ...], bytes untouched. InvalidArgument when shapes or
// element sizes differ.
void launch_strided_copy(const TensorView& destination, const TensorView& source, Stream stream);

}  // namespace mladcp
