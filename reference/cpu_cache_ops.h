// CacheOps on the host.
#pragma once

#include "core/cache_ops.h"

namespace mladcp {

class CpuCacheOps final : public CacheOps {
 public:
  explicit CpuCacheOps(int threads) : threads_(threads) {}

  // Refuses a slot at or past the cache's last row before anything is written.
  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override;
  // In cpu_context_ops.cc.
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override;
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override;

 private:
  int threads_;
};

}  // namespace mladcp
