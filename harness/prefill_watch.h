// Watches one rank's prefill through decorators of its operations and collective. Data movement is
// judged chunk by chunk while the step runs, so that no chunk is kept; of the attention stages a
// sample of rows and heads is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/forwarding_collective.h"
#include "harness/check.h"
#include "harness/forwarding_ops.h"
#include "harness/prefill_expectation.h"
#include "harness/prefill_sample.h"

namespace mladcp {

// The sampled rows and heads of one attention or merge stage.
struct WatchedHeads {
  Tensor out;  // [rows, heads, Vd] fp32
  Tensor lse;  // [rows, heads] fp32
};

struct WatchedChunk {
  WatchedHeads partial, before, merged;
};

// view[rows, heads, ...] of a tensor [T, H, ...], on the host.
Tensor sampled(const TensorView& view, const PrefillSample& sample, Stream stream);

class PrefillWatch {
 public:
  // fake: every peer's data is this rank's own. `expectation` and `sample` outlive the watch.
  PrefillWatch(const PrefillExpectation& expectation, const PrefillSample& sample, int rank,
               int world_size, bool fake)
      : expectation_(expectation),
        sample_(sample),
        rank_(rank),
        world_size_(world_size),
        fake_(fake) {}

  void saw_local_rows(const TensorView& rows, Stream stream);
  void saw_gathered_rows(const TensorView& rows, Stream stream);
  void saw_context_rows(const TensorView& rows, Stream stream);
  void saw_causal(const TensorView& out, const TensorView& lse, Stream stream);
  void saw_partial(const TensorView& out, const TensorView& lse, Stream stream);
  void before_merge(const TensorView& running, const TensorView& lse, Stream stream);
  void after_merge(const TensorView& running, const TensorView& lse, Stream stream);

  // Stages "gather", "exchange", "reorganise" of all chunks seen, and "merge": that each merge met
  // what the stage before left.
  std::vector<Check> exact_checks() const;

  const WatchedHeads& causal() const { return causal_; }
  const std::vector<WatchedChunk>& chunks() const { return chunks_; }

 private:
  // What was compared bit for bit, over all chunks.
  struct Tally {
    std::int64_t calls = 0;
    std::int64_t wrong = 0;
    std::string first;
  };

  void judge(Tally& tally, const TensorView& rows, std::int64_t row_count,
             const std::vector<PlacedToken>& tokens, std::int64_t source_rank, Stream stream);
  Check check(const Tally& tally, const char* stage, const char* name) const;
  void expect_carried(const WatchedHeads& running);
  std::int64_t current() const { return gather_.calls - 1; }  // a gather begins a chunk
  bool known() const { return current() >= 0 && current() < expectation_.chunks(); }

  WatchedHeads taken(const TensorView& out, const TensorView& lse, Stream stream) const {
    return {sampled(out, sample_, stream), sampled(lse, sample_, stream)};
  }

  const PrefillExpectation& expectation_;
  const PrefillSample& sample_;
  int rank_;
  int world_size_;
  bool fake_;
  Tally gather_, exchange_, reorganise_, carry_;
  WatchedHeads causal_;
  std::vector<WatchedChunk> chunks_;
};

class WatchedCacheOps final : public ForwardingCacheOps {
 public:
  WatchedCacheOps(CacheOps& next, PrefillWatch& watch) : ForwardingCacheOps(next), watch_(watch) {}
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override;
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override;

 private:
  PrefillWatch& watch_;
};

class WatchedAttentionOps final : public ForwardingAttentionOps {
 public:
  WatchedAttentionOps(AttentionOps& next, PrefillWatch& watch)
      : ForwardingAttentionOps(next), watch_(watch) {}
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override;
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override;

 private:
  PrefillWatch& watch_;
};

class WatchedCombineOps final : public ForwardingCombineOps {
 public:
  WatchedCombineOps(CombineOps& next, PrefillWatch& watch)
      : ForwardingCombineOps(next), watch_(watch) {}
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse, Stream stream) override;

 private:
  PrefillWatch& watch_;
};

class WatchedCollective final : public ForwardingCollective {
 public:
  WatchedCollective(Collective& next, PrefillWatch& watch)
      : ForwardingCollective(next), watch_(watch) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  PrefillWatch& watch_;
};

// A rank's operations under watch.
struct WatchedOps {
  WatchedOps(const Ops& next, PrefillWatch& watch)
      : query(next.query),
        cache(next.cache, watch),
        attention(next.attention, watch),
        combine(next.combine, watch) {}

  Ops ops() { return {query, cache, attention, combine}; }

  QueryOps& query;
  WatchedCacheOps cache;
  WatchedAttentionOps attention;
  WatchedCombineOps combine;
};

}  // namespace mladcp
