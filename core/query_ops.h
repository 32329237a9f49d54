// Operations on queries and weights. Outputs first; nothing allocates.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

class QueryOps {
 public:
  virtual ~QueryOps() = default;

  // out[t, h, l] = sum over p of q_nope[t, h, p] * w_uk[h, p, l]
  // out [T, H, L] bf16, q_nope [T, H, P] bf16, w_uk [H, P, L] bf16; fp32 accumulation.
  virtual void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
                      Stream stream) = 0;

  // out[t, h, :] = [latent[t, h, :] | rope[t, h, :]], bits moved.
  // out [T, H, D] bf16, latent [T, H, L] bf16, rope [T, H, R] bf16.
  virtual void concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
                      Stream stream) = 0;

  // out = saturate(round_nearest_even([latent | rope] / q_scale)), an fp32 division.
  // out [T, H, D] e4m3. Every row is written, whoever stores its token.
  virtual void concat_quantize(const TensorView& out, const TensorView& latent,
                               const TensorView& rope, float q_scale, Stream stream) = 0;

  // out[t, h, v] = sum over l of latent[t, h, l] * w_uv[h, l, v]
  // out [T, H, Vd] bf16 or fp32, latent [T, H, L] bf16 or fp32, w_uv [H, L, Vd] bf16; fp32 sums.
  virtual void project_value(const TensorView& out, const TensorView& latent,
                             const TensorView& w_uv, Stream stream) = 0;

  // The kv_b up-projection of chunked prefill: keys and values of M latent rows, for H heads.
  //   key[m, h, :P]  = sum over l of rows[m, l] * w_uk[h, :, l]
  //   key[m, h, P:]  = rows[m, L:]                 (RoPE is already applied, shared by all heads)
  //   value[m, h, :] = sum over l of rows[m, l] * w_uv[h, l, :]
  // key [M, H, P + R] bf16, value [M, H, Vd] bf16, rows [M, D] bf16.
  virtual void project_keys_values(const TensorView& key, const TensorView& value,
                                   const TensorView& rows, const TensorView& w_uk,
                                   const TensorView& w_uv, Stream stream) = 0;
};

}  // namespace mladcp
