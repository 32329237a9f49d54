#include "harness/prefill_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/device.h"
#include "harness/bound_checks.h"
#include "harness/exact_checks.h"
#include "harness/expected_collectives.h"
#include "harness/rank_inputs.h"
#include "reference/error_bounds.h"
#include "reference/parallel_for.h"
#include "reference/prefill_oracle.h"

namespace mladcp {
namespace {

// The graver of two checks of one stage: a failure, else the larger share of its bound.
Check graver(const Check& a, const Check& b) {
  const auto gravity = [](const Check& check) {
    if (check.status == CheckStatus::kFail) return 1e300;
    return check.bound == 0.0 ? check.measured : check.measured / check.bound;
  };
  return gravity(b) > gravity(a) ? b : a;
}

// One group's step as the oracle takes it: all heads of the group.
class Audit {
 public:
  explicit Audit(const JudgedPrefill& judged)
      : expectation_(judged.expectation),
        sample_(judged.sample),
        heads_(gathered_heads(judged.scenario.parallel, judged.outcome.group)),
        w_uk_(judged.problem.w_uk.view().narrow(0, heads_.begin, heads_.count)),
        w_uv_(judged.problem.w_uv.view().narrow(0, heads_.begin, heads_.count)),
        softmax_scale_(judged.problem.softmax_scale) {
    const DecodeProblem& problem = judged.problem;
    const MlaDims& dims = problem.dims;
    const std::int64_t t = problem.rows();
    query_ = Tensor(host_device(), DType::kBF16, {t, heads_.count, dims.nope + dims.rope}, "query");
    new_rows_ = Tensor(host_device(), DType::kBF16, {t, dims.row()}, "new rows");
    const auto copy = [](const TensorView& to, const TensorView& from) {
      host_device().copy_strided(to, from, {});
    };
    copy(query_.view().narrow(2, 0, dims.nope),
         problem.q_nope.view().narrow(1, heads_.begin, heads_.count));
    copy(query_.view().narrow(2, dims.nope, dims.rope),
         problem.q_rope.view().narrow(1, heads_.begin, heads_.count));
    for (const auto& [context, added] : expectation_.requests()) {
      const std::size_t b = alone_.size();
      copy(new_rows_.view().narrow(0, expectation_.plan().cu_rows[b], added),
           problem.kv.view().narrow(0, problem.kv_begin[b] + context, added));
      alone_.push_back({context, context + added});
    }
  }

  // `head` counts within the group.
  PrefillHead head(std::int64_t head) const {
    return {{expectation_.requests(), softmax_scale_, query_, expectation_.context_rows(),
             new_rows_, w_uk_, w_uv_},
            head,
            sample_.rows};
  }
  // New tokens among themselves.
  const std::vector<KeyRange>& alone() const { return alone_; }
  // The keys of a chunk; none for a request that is not in it.
  std::vector<KeyRange> chunk(std::int64_t c) const {
    std::vector<KeyRange> ranges(alone_.size());
    for (const ContextPiece& piece : expectation_.chunk(c).pieces) {
      ranges[static_cast<std::size_t>(piece.request)] = {piece.start, piece.start + piece.length};
    }
    return ranges;
  }

  const PrefillSample& sample() const { return sample_; }
  std::int64_t chunks() const { return expectation_.chunks(); }

  // "request 1 position 82, head 3 of the rank"
  std::string where(std::int64_t sampled_row, std::int64_t local_head) const {
    const PrefillPlan& plan = expectation_.plan();
    const std::int64_t row = sample_.rows[static_cast<std::size_t>(sampled_row)];
    const auto after = std::upper_bound(plan.cu_rows.begin(), plan.cu_rows.end(), row);
    return fmt::format("request {} position {}, head {} of the rank",
                       after - plan.cu_rows.begin() - 1,
                       plan.position[static_cast<std::size_t>(row)], local_head);
  }

 private:
  const PrefillExpectation& expectation_;
  const PrefillSample& sample_;
  HeadRange heads_;
  TensorView w_uk_, w_uv_;
  float softmax_scale_;
  Tensor query_;                 // [T, Hg, P + R]
  Tensor new_rows_;              // [T, D]
  std::vector<KeyRange> alone_;  // [B] new tokens without their context
};

// One sampled head of one rank.
struct HeadAudit {
  const Audit& audit;
  const PrefillRankOutcome& outcome;
  const PrefillWatch& watch;
  std::int64_t at;    // which of the sampled heads
  std::int64_t head;  // of the rank
  PrefillFormats formats;

  int rank() const { return outcome.rank; }
  PrefillFormats in_fp32(std::int64_t chunks) const {
    PrefillFormats fp32 = formats;
    fp32.out_unit = 0.0;
    fp32.chunks = chunks;
    return fp32;
  }
  // `part` precedes request and position: "chunk 2, ".
  Check check(const char* stage, const char* name, const TensorView& got, const Expected& wanted,
              const std::string& part = "") const {
    return check_within(stage, rank(), name, got.select(1, at), wanted,
                        [&](const Shape& index) { return part + audit.where(index[0], head); });
  }
  // out and LSE of a stage against what they should be; the graver one.
  Check check(const char* stage, const char* name, const WatchedHeads& got,
              const ExpectedPrefill& wanted, const std::string& part = "") const {
    return graver(check(stage, name, got.out, wanted.out, part),
                  check(stage, name, got.lse, wanted.lse, part));
  }
};

std::string chunk_part(std::int64_t c) { return fmt::format("chunk {}, ", c); }

Check causal_check(const HeadAudit& at, const PrefillHead& oracle) {
  return at.check("causal", "new tokens among themselves against fp64", at.watch.causal(),
                  expect_prefill(oracle.attend(at.audit.alone()), at.in_fp32(0)));
}

Check context_check(const HeadAudit& at, const PrefillHead& oracle) {
  const char* stage = "context attention";
  const char* name = "each chunk against fp64";
  const std::vector<WatchedChunk>& chunks = at.watch.chunks();
  if (at.audit.chunks() == 0) return skipped(stage, at.rank(), name, "no cached context");
  const auto calls = static_cast<std::int64_t>(chunks.size());
  if (calls != at.audit.chunks()) {
    return check_count(
        stage, at.rank(), name, 1,
        fmt::format("ran {} times, wanted once a chunk, {}", calls, at.audit.chunks()));
  }
  Check worst{stage, at.rank(), name};
  for (std::int64_t c = 0; c < calls; ++c) {
    worst = graver(worst, at.check(stage, name, chunks[static_cast<std::size_t>(c)].partial,
                                   expect_prefill(oracle.attend(at.audit.chunk(c)), at.in_fp32(0)),
                                   chunk_part(c)));
  }
  return worst;
}

// [2, T, 1, ...] of what was there and what came.
Tensor stacked(const TensorView& first, const TensorView& second) {
  Shape shape = first.shape;
  shape.insert(1, 1);
  shape.insert(0, 2);
  Tensor both(host_device(), first.dtype, shape, "partials");
  host_device().copy_strided(both.view().select(0, 0).merged(0), first, {});
  host_device().copy_strided(both.view().select(0, 1).merged(0), second, {});
  return both;
}

Check merge_check(const HeadAudit& at) {
  const char* stage = "merge";
  const char* name = "running result of each chunk against fp64";
  const std::vector<WatchedChunk>& chunks = at.watch.chunks();
  if (chunks.empty()) return skipped(stage, at.rank(), name, "no cached context");
  Check worst{stage, at.rank(), name};
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const WatchedChunk& seen = chunks[c];
    if (seen.merged.out.empty()) {
      return check_count(stage, at.rank(), name, 1, fmt::format("chunk {} was not merged", c));
    }
    const auto both = [&](const Tensor& before, const Tensor& partial) {
      return stacked(before.view().select(1, at.at), partial.view().select(1, at.at));
    };
    ExpectedAttention wanted = expect_merged(both(seen.before.out, seen.partial.out),
                                             both(seen.before.lse, seen.partial.lse), DType::kF32);
    wanted.out.shape.erase(1);
    wanted.lse.shape.erase(1);
    const std::string part = chunk_part(static_cast<std::int64_t>(c));
    worst = graver(worst, at.check(stage, name, seen.merged.out, wanted.out, part));
    worst = graver(worst, at.check(stage, name, seen.merged.lse, wanted.lse, part));
  }
  return worst;
}

// The bounded checks of one head, stage by stage; of several heads the gravest remain.
using HeadChecks = std::vector<Check>;

HeadChecks head_checks(const HeadAudit& at, std::int64_t group_head) {
  const PrefillHead oracle = at.audit.head(group_head);
  const PrefillReference whole = oracle.whole();
  PrefillFormats rounded = at.formats;
  rounded.chunks = at.audit.chunks();
  const auto sample_of = [&](const Tensor& tensor) {
    return sampled(tensor, at.audit.sample(), {});
  };
  return {causal_check(at, oracle), context_check(at, oracle), merge_check(at),
          at.check("output", "the whole step against the unsharded fp64",
                   sample_of(at.outcome.output), expect_prefill(whole, rounded).out),
          at.check("output", "LSE of the whole step", sample_of(at.outcome.lse),
                   expect_prefill(whole, at.in_fp32(rounded.chunks)).lse)};
}

}  // namespace

std::vector<Check> exact_prefill_checks(const JudgedPrefill& judged) {
  const ParallelConfig& config = judged.scenario.parallel;
  const std::vector<CollectiveCall> calls =
      expected_prefill_collectives(config, judged.problem.dims, judged.expectation.plan().context);
  std::vector<Check> checks;
  for (const PrefillRankOutcome& outcome : judged.outcome.ranks) {
    const int rank = outcome.rank;
    std::string first;
    const std::int64_t wrong =
        plan_violations(judged.scenario, judged.problem, judged.layout, rank, outcome.plan, first);
    checks.push_back(
        check_count("plan", rank, "chunks, slots: each token once, by counting", wrong, first));
    checks.push_back(
        check_equal_bits("write", rank, "the whole cache, poison included", outcome.cache_after,
                         cache_after_step(config, judged.problem, judged.layout, rank)));
    for (Check& check : judged.watch(rank).movement_checks()) checks.push_back(std::move(check));
    checks.push_back(judged.watch(rank).carry_check());
    checks.push_back(check_calls(calls, judged.outcome.calls, rank));
  }
  return checks;
}

std::vector<Check> bounded_prefill_checks(const JudgedPrefill& judged,
                                          const PrefillFormats& formats) {
  const bool fake = judged.scenario.collective == "fake";
  std::vector<Check> checks;
  if (judged.problem.rows() == 0 || fake) {
    for (const char* stage : {"causal", "context attention", "merge", "output"}) {
      checks.push_back(
          skipped(stage, Check::kAllRanks, "against fp64",
                  fake ? "the fake group's peers are copies of one rank" : "no new tokens"));
    }
    return checks;
  }
  const Audit audit(judged);
  const std::int64_t h = judged.scenario.parallel.local_heads();
  const PrefillSample& sample = judged.sample;
  const std::vector<PrefillRankOutcome>& ranks = judged.outcome.ranks;
  const std::size_t heads = sample.heads.size();
  std::vector<HeadChecks> found(ranks.size() * heads);
  parallel_for(threads_per_rank(1), static_cast<std::int64_t>(found.size()), [&](std::int64_t i) {
    const auto task = static_cast<std::size_t>(i);
    const PrefillRankOutcome& outcome = ranks[task / heads];
    const std::size_t at = task % heads;
    const HeadAudit head{audit,
                         outcome,
                         judged.watch(outcome.rank),
                         static_cast<std::int64_t>(at),
                         sample.heads[at],
                         formats};
    found[task] = head_checks(head, outcome.rank * h + head.head);
  });
  for (std::size_t first = 0; first < found.size(); first += heads) {
    for (std::size_t stage = 0; stage < found[first].size(); ++stage) {
      Check worst = found[first][stage];
      for (std::size_t i = 1; i < heads; ++i) worst = graver(worst, found[first + i][stage]);
      worst.audited = sample.pairs();
      worst.auditable = judged.problem.rows() * h;
      checks.push_back(std::move(worst));
    }
  }
  return checks;
}

}  // namespace mladcp
