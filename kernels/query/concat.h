// Joins latent and RoPE parts of query rows, as bf16 or quantised to e4m3.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

// out[t, h, :] = [latent[t, h, :] | rope[t, h, :]]; out e4m3: divided by q_scale, rounded,
// saturated. Shapes as in QueryOps, checked by the caller.
void launch_concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
                   float q_scale, Stream stream);

}  // namespace mladcp
