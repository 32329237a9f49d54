// Operations that refuse an index astray by name before a kernel follows it, as the host's do: on a
// device a wild page is an illegal access that takes the whole context with it.
#pragma once

#include "harness/forwarding_ops.h"

namespace mladcp {

// InvalidArgument for a slot beyond the cache.
class CheckedCacheOps final : public ForwardingCacheOps {
 public:
  using ForwardingCacheOps::ForwardingCacheOps;
  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override;
  // InvalidArgument for a page or column beyond cache or table.
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override;
};

// InvalidArgument for a visible key whose page or column lies beyond cache or table.
class CheckedAttentionOps final : public ForwardingAttentionOps {
 public:
  using ForwardingAttentionOps::ForwardingAttentionOps;
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override;
};

struct CheckedIndexOps {
  explicit CheckedIndexOps(const Ops& next)
      : query(next.query), cache(next.cache), attention(next.attention), combine(next.combine) {}

  Ops ops() { return {query, cache, attention, combine}; }

  QueryOps& query;
  CheckedCacheOps cache;
  CheckedAttentionOps attention;
  CombineOps& combine;
};

}  // namespace mladcp
