// CombineOps on the host, in fp32, by the law of core/lse_merge.h.
#pragma once

#include "core/combine_ops.h"

namespace mladcp {

class CpuCombineOps final : public CombineOps {
 public:
  explicit CpuCombineOps(int threads) : threads_(threads) {}

  void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                  Stream stream) override;
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override;
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override;
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse, Stream stream) override;
  void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
            Stream stream) override;
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override;
  void round_to(const TensorView& out, const TensorView& value, Stream stream) override;

 private:
  int threads_;
};

}  // namespace mladcp
