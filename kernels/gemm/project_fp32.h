// The value projection of fp32 rows, which tensor cores do not take: plain fp32 arithmetic.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

// out[t, h, v] = sum over l of latent[t, h, l] * w_uv[h, l, v], summed in fp32 in order of l.
// out [T, H, Vd] bf16 or fp32, latent [T, H, L] fp32, w_uv [H, L, Vd] bf16; shapes checked by the
// caller.
void launch_project_fp32(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                         Stream stream);

}  // namespace mladcp
