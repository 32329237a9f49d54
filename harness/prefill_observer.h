// Sees what one rank's prefill moves, attends and merges, through decorators of its operations and
// collective. Called while the step runs, so that no chunk need be kept.
#pragma once

#include "collectives/forwarding_collective.h"
#include "harness/forwarding_ops.h"

namespace mladcp {

// One observer a rank, called on the rank's thread, after the stage it is named after (but for
// before_merge). Tensors live on the rank's device and change after the call.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;

  // Per chunk: [toks, D], [N * toks, D] (not with one rank), [rows, D] (not with one rank).
  virtual void saw_local_rows(const TensorView& /*rows*/, Stream /*stream*/) {}
  virtual void saw_gathered_rows(const TensorView& /*rows*/, Stream /*stream*/) {}
  virtual void saw_context_rows(const TensorView& /*rows*/, Stream /*stream*/) {}
  // out [T, H, Vd] fp32, lse [T, H] fp32, throughout.
  virtual void saw_causal(const TensorView& /*out*/, const TensorView& /*lse*/, Stream /*stream*/) {
  }
  virtual void saw_partial(const TensorView& /*out*/, const TensorView& /*lse*/,
                           Stream /*stream*/) {}
  virtual void before_merge(const TensorView& /*running*/, const TensorView& /*lse*/,
                            Stream /*stream*/) {}
  virtual void after_merge(const TensorView& /*running*/, const TensorView& /*lse*/,
                           Stream /*stream*/) {}
};

class ObservedCacheOps final : public ForwardingCacheOps {
 public:
  ObservedCacheOps(CacheOps& next, PrefillObserver& observer)
      : ForwardingCacheOps(next), observer_(observer) {}
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override;
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override;

 private:
  PrefillObserver& observer_;
};

class ObservedAttentionOps final : public ForwardingAttentionOps {
 public:
  ObservedAttentionOps(AttentionOps& next, PrefillObserver& observer)
      : ForwardingAttentionOps(next), observer_(observer) {}
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override;
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override;

 private:
  PrefillObserver& observer_;
};

class ObservedCombineOps final : public ForwardingCombineOps {
 public:
  ObservedCombineOps(CombineOps& next, PrefillObserver& observer)
      : ForwardingCombineOps(next), observer_(observer) {}
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse, Stream stream) override;

 private:
  PrefillObserver& observer_;
};

class ObservedCollective final : public ForwardingCollective {
 public:
  ObservedCollective(Collective& next, PrefillObserver& observer)
      : ForwardingCollective(next), observer_(observer) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  PrefillObserver& observer_;
};

// A rank's operations under observation.
struct ObservedOps {
  ObservedOps(const Ops& next, PrefillObserver& observer)
      : query(next.query),
        cache(next.cache, observer),
        attention(next.attention, observer),
        combine(next.combine, observer) {}

  Ops ops() { return {query, cache, attention, combine}; }

  QueryOps& query;
  ObservedCacheOps cache;
  ObservedAttentionOps attention;
  ObservedCombineOps combine;
};

}  // namespace mladcp
