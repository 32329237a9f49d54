// QueryOps on the host: fp32 arithmetic (Eigen) on the stored formats.
#pragma once

#include "core/query_ops.h"

namespace mladcp {

class CpuQueryOps final : public QueryOps {
 public:
  explicit CpuQueryOps(int threads) : threads_(threads) {}

  void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
              Stream stream) override;
  void concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
              Stream stream) override;
  void concat_quantize(const TensorView& out, const TensorView& latent, const TensorView& rope,
                       float q_scale, Stream stream) override;
  void project_value(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                     Stream stream) override;
  // In cpu_context_ops.cc, with the other operations of chunked prefill.
  void project_keys_values(const TensorView& key, const TensorView& value, const TensorView& rows,
                           const TensorView& w_uk, const TensorView& w_uv, Stream stream) override;

 private:
  int threads_;
};

}  // namespace mladcp
