// Watches one rank's prefill: data movement is judged chunk by chunk while the step runs, of the
// attention stages a sample of rows and heads is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness/check.h"
#include "harness/prefill_expectation.h"
#include "harness/prefill_observer.h"
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

// What row `row` of bf16 rows [_, D] says it is: "rank 2 request 0 position 17". For contents that
// name themselves (harness/tag.h).
using RowNamer = std::function<std::string(const TensorView& rows, std::int64_t row)>;

class PrefillWatch final : public PrefillObserver {
 public:
  // fake: every peer's data is this rank's own. `expectation` and `sample` outlive the watch.
  // named, if given, tells of a wrong row what it is.
  PrefillWatch(const PrefillExpectation& expectation, const PrefillSample& sample, int rank,
               int world_size, bool fake, RowNamer named = nullptr)
      : expectation_(expectation),
        sample_(sample),
        rank_(rank),
        world_size_(world_size),
        fake_(fake),
        named_(std::move(named)) {}

  void saw_local_rows(const TensorView& rows, Stream stream) override;
  void saw_gathered_rows(const TensorView& rows, Stream stream) override;
  void saw_context_rows(const TensorView& rows, Stream stream) override;
  void saw_causal(const TensorView& out, const TensorView& lse, Stream stream) override;
  void saw_partial(const TensorView& out, const TensorView& lse, Stream stream) override;
  void before_merge(const TensorView& running, const TensorView& lse, Stream stream) override;
  void after_merge(const TensorView& running, const TensorView& lse, Stream stream) override;

  // Stages "gather", "exchange", "reorganise" of all chunks seen.
  std::vector<Check> movement_checks() const;
  // Stage "merge": each merge met what the stage before left.
  Check carry_check() const;

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
  RowNamer named_;
  Tally gather_, exchange_, reorganise_, carry_;
  WatchedHeads causal_;
  std::vector<WatchedChunk> chunks_;
};

}  // namespace mladcp
