#include "harness/prefill_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
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

constexpr std::int64_t kAuditedRows = 128;  // of a step, about
constexpr double kAuditWork = 1e11;         // floating-point operations of one group's "output"

// The graver of two checks of one stage: a failure, else the larger share of its bound.
Check graver(const Check& a, const Check& b) {
  const auto gravity = [](const Check& check) {
    if (check.status == CheckStatus::kFail) return 1e300;
    return check.bound == 0.0 ? check.measured : check.measured / check.bound;
  };
  return gravity(b) > gravity(a) ? b : a;
}

// Rows at even distances, and the first and last of every request.
std::vector<std::int64_t> audited_rows(const std::vector<std::int32_t>& cu_rows) {
  std::vector<std::int64_t> rows;
  const std::int64_t stride = std::max<std::int64_t>(1, cu_rows.back() / kAuditedRows);
  for (std::size_t b = 0; b + 1 < cu_rows.size(); ++b) {
    for (std::int64_t t = cu_rows[b]; t < cu_rows[b + 1]; ++t) {
      if (t % stride == 0 || t == cu_rows[b] || t + 1 == cu_rows[b + 1]) rows.push_back(t);
    }
  }
  return rows;
}

// view[rows, ...], contiguous.
Tensor rows_of(const TensorView& view, const std::vector<std::int64_t>& rows) {
  Shape shape = view.shape;
  shape[0] = static_cast<std::int64_t>(rows.size());
  Tensor picked(host_device(), view.dtype, shape, view.name);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    host_device().copy_strided(picked.view().narrow(0, static_cast<std::int64_t>(i), 1),
                               view.narrow(0, rows[i], 1), {});
  }
  return picked;
}

// One group's step as the oracle takes it: all heads of the group.
class Audit {
 public:
  Audit(const Scenario& scenario, const DecodeProblem& problem,
        const PrefillExpectation& expectation, std::int64_t group)
      : expectation_(expectation),
        heads_(gathered_heads(scenario.parallel, group)),
        w_uk_(problem.w_uk.view().narrow(0, heads_.begin, heads_.count)),
        w_uv_(problem.w_uv.view().narrow(0, heads_.begin, heads_.count)),
        softmax_scale_(problem.softmax_scale),
        rows_(audited_rows(expectation.plan().cu_rows)) {
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
    for (const auto& [context, added] : expectation.requests()) {
      const std::size_t b = alone_.size();
      copy(new_rows_.view().narrow(0, expectation.plan().cu_rows[b], added),
           problem.kv.view().narrow(0, problem.kv_begin[b] + context, added));
      alone_.push_back({0, added});
    }
  }

  // `head` counts within the group.
  PrefillReference whole(std::int64_t head) const {
    return prefill_reference({expectation_.requests(), softmax_scale_, query_,
                              expectation_.context_rows(), new_rows_, w_uk_, w_uv_},
                             head, rows_);
  }
  // New tokens among themselves.
  PrefillReference causal(std::int64_t head) const {
    return prefill_reference({alone_, softmax_scale_, query_,
                              expectation_.context_rows().narrow(0, 0, 0), new_rows_, w_uk_, w_uv_},
                             head, rows_);
  }
  PrefillReference chunk(std::int64_t c, std::int64_t head) const {
    const Tensor keys = expectation_.reorganised_rows(c);
    return context_reference({expectation_.plan().cu_rows, expectation_.chunk(c).cu_seq_lens,
                              softmax_scale_, query_, keys, w_uk_, w_uv_},
                             head, rows_);
  }

  const std::vector<std::int64_t>& rows() const { return rows_; }
  std::size_t chunks() const { return static_cast<std::size_t>(expectation_.chunks()); }

  // Floating-point operations of whole(), roughly: the up-projection and ten products a row and
  // key.
  double work_of_a_head() const {
    const auto width = static_cast<double>(w_uk_.size(1) + w_uv_.size(2));
    const auto latent = static_cast<double>(w_uk_.size(2));
    double work = 0.0;
    const double share =
        static_cast<double>(rows_.size()) / std::max(1.0, static_cast<double>(query_.shape()[0]));
    for (const auto& [context, added] : expectation_.requests()) {
      if (added == 0) continue;
      const auto keys = static_cast<double>(context + added);
      work += 2.0 * keys * width * (latent + 5.0 * share * static_cast<double>(added));
    }
    return work;
  }

 private:
  const PrefillExpectation& expectation_;
  HeadRange heads_;
  TensorView w_uk_, w_uv_;
  float softmax_scale_;
  std::vector<std::int64_t> rows_;     // audited, of [0, T)
  Tensor query_;                       // [T, Hg, P + R]
  Tensor new_rows_;                    // [T, D]
  std::vector<PrefillRequest> alone_;  // the new tokens without their context
};

// Heads of a rank that "output" audits: evenly spread.
std::vector<std::int64_t> audited_heads(std::int64_t heads, double work_of_a_head,
                                        std::int64_t ranks) {
  const double affordable = kAuditWork / std::max(1.0, work_of_a_head * static_cast<double>(ranks));
  const auto count =
      static_cast<std::int64_t>(std::clamp(affordable, 1.0, static_cast<double>(heads)));
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(i * heads / count);
  return chosen;
}

struct RankAudit {
  const Audit& audit;
  const PrefillRankOutcome& outcome;
  int rank;
  std::int64_t local_heads;
  PrefillFormats formats;

  std::int64_t group_head(std::int64_t head) const { return rank * local_heads + head; }
  PrefillFormats in_fp32(std::int64_t chunks) const {
    PrefillFormats fp32 = formats;
    fp32.out_unit = 0.0;
    fp32.chunks = chunks;
    return fp32;
  }
};

// out and LSE of one watched head against what they should be; the graver one.
Check check_head(const RankAudit& at, const char* stage, const char* name, const WatchedHead& got,
                 const ExpectedPrefill& wanted) {
  return graver(check_within(stage, at.rank, name, rows_of(got.out, at.audit.rows()), wanted.out),
                check_within(stage, at.rank, name, rows_of(got.lse, at.audit.rows()), wanted.lse));
}

void name_chunk(Check& check, std::size_t c, std::int64_t head) {
  if (check.message.empty()) return;
  check.message += fmt::format(" (chunk {}, local head {})", c, head);
}

Check causal_check(const RankAudit& at) {
  const WatchedChunk& seen = at.outcome.watch->causal();
  const char* name = "new tokens, one head, against fp64";
  return check_head(at, "causal", name, seen.partial,
                    expect_prefill(at.audit.causal(at.group_head(seen.head)), at.in_fp32(0)));
}

Check context_check(const RankAudit& at) {
  const char* stage = "context attention";
  const char* name = "a head of each chunk against fp64";
  const std::vector<WatchedChunk>& chunks = at.outcome.watch->chunks();
  if (chunks.empty()) return skipped(stage, at.rank, name, "no cached context");
  Check worst{stage, at.rank, name};
  const std::size_t wanted_chunks = at.audit.chunks();
  if (chunks.size() != wanted_chunks) {
    return check_count(
        stage, at.rank, name, 1,
        fmt::format("ran {} times, wanted once a chunk, {}", chunks.size(), wanted_chunks));
  }
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const ExpectedPrefill wanted = expect_prefill(
        at.audit.chunk(static_cast<std::int64_t>(c), at.group_head(chunks[c].head)), at.in_fp32(0));
    Check check = check_head(at, stage, name, chunks[c].partial, wanted);
    name_chunk(check, c, chunks[c].head);
    worst = graver(worst, check);
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

Check merge_check(const RankAudit& at) {
  const char* stage = "merge";
  const char* name = "running result of each chunk against fp64";
  const std::vector<WatchedChunk>& chunks = at.outcome.watch->chunks();
  if (chunks.empty()) return skipped(stage, at.rank, name, "no cached context");
  Check worst{stage, at.rank, name};
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const WatchedChunk& seen = chunks[c];
    ExpectedAttention wanted =
        expect_merged(stacked(seen.before.out, seen.partial.out),
                      stacked(seen.before.lse, seen.partial.lse), DType::kF32);
    wanted.out.shape.erase(1);
    wanted.lse.shape.erase(1);
    Check check = graver(check_within(stage, at.rank, name, seen.merged.out, wanted.out),
                         check_within(stage, at.rank, name, seen.merged.lse, wanted.lse));
    name_chunk(check, c, seen.head);
    worst = graver(worst, check);
  }
  return worst;
}

struct OutputChecks {
  Check out, lse;
};

OutputChecks output_checks(const RankAudit& at, std::int64_t head, const std::string& name) {
  const PrefillReference reference = at.audit.whole(at.group_head(head));
  const auto chunks = static_cast<std::int64_t>(at.audit.chunks());
  PrefillFormats formats = at.formats;
  formats.chunks = chunks;
  const auto part = [&](const Tensor& tensor) {
    return rows_of(tensor.view().select(1, head), at.audit.rows());
  };
  OutputChecks checks{check_within("output", at.rank, name, part(at.outcome.output),
                                   expect_prefill(reference, formats).out),
                      check_within("output", at.rank, "LSE, " + name, part(at.outcome.lse),
                                   expect_prefill(reference, at.in_fp32(chunks)).lse)};
  for (Check* check : {&checks.out, &checks.lse}) {
    if (!check->message.empty()) check->message += fmt::format(" (local head {})", head);
  }
  return checks;
}

Check collectives_check(const Scenario& scenario, const PrefillExpectation& expectation,
                        const DecodeProblem& problem, const PrefillGroupOutcome& outcome,
                        int rank) {
  return check_calls(
      expected_prefill_collectives(scenario.parallel, problem.dims, expectation.plan().context),
      outcome.calls, rank);
}

}  // namespace

std::vector<Check> exact_prefill_checks(const Scenario& scenario, const DecodeProblem& problem,
                                        const PagedLayout& layout,
                                        const PrefillExpectation& expectation,
                                        const PrefillGroupOutcome& outcome) {
  std::vector<Check> checks;
  for (std::size_t r = 0; r < outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const PrefillRankOutcome& at_rank = outcome.ranks[r];
    std::string first;
    const std::int64_t wrong =
        plan_violations(scenario, problem, layout, rank, at_rank.plan, first);
    checks.push_back(
        check_count("plan", rank, "chunks, slots: each token once, by counting", wrong, first));
    checks.push_back(check_equal_bits("write", rank, "the whole cache, poison included",
                                      at_rank.cache_after,
                                      cache_after_step(scenario.parallel, problem, layout, rank)));
    for (Check& check : at_rank.watch->movement_checks()) checks.push_back(std::move(check));
    checks.push_back(collectives_check(scenario, expectation, problem, outcome, rank));
  }
  return checks;
}

std::vector<Check> bounded_prefill_checks(const Scenario& scenario, const DecodeProblem& problem,
                                          const PrefillExpectation& expectation,
                                          const PrefillGroupOutcome& outcome,
                                          const PrefillFormats& formats) {
  const auto ranks = static_cast<std::int64_t>(outcome.ranks.size());
  const bool fake = scenario.collective == "fake";
  if (problem.rows() == 0 || fake) {
    std::vector<Check> checks;
    for (const char* stage : {"causal", "context attention", "merge", "output"}) {
      checks.push_back(
          skipped(stage, Check::kAllRanks, "against fp64",
                  fake ? "the fake group's peers are copies of one rank" : "no new tokens"));
    }
    return checks;
  }
  const Audit audit(scenario, problem, expectation, outcome.group);
  const std::int64_t h = scenario.parallel.local_heads();
  const std::vector<std::int64_t> heads = audited_heads(h, audit.work_of_a_head(), ranks);
  const std::string name = fmt::format("fp64: {} of {} heads, {} of {} rows", heads.size(), h,
                                       audit.rows().size(), problem.rows());
  const auto head_count = static_cast<std::int64_t>(heads.size());
  const auto audit_of = [&](std::int64_t rank) {
    return RankAudit{audit, outcome.ranks[static_cast<std::size_t>(rank)], static_cast<int>(rank),
                     h, formats};
  };

  // All pieces of work side by side: three stages a rank, and every audited head.
  using StageCheck = Check (*)(const RankAudit&);
  constexpr StageCheck kStages[] = {causal_check, context_check, merge_check};
  constexpr std::int64_t kStageCount = 3;
  std::vector<Check> checks(static_cast<std::size_t>(ranks * kStageCount));
  std::vector<OutputChecks> outputs(static_cast<std::size_t>(ranks * head_count));
  const std::int64_t stage_work = ranks * kStageCount;
  parallel_for(threads_per_rank(1), stage_work + ranks * head_count, [&](std::int64_t i) {
    if (i < stage_work) {
      checks[static_cast<std::size_t>(i)] = kStages[i % kStageCount](audit_of(i / kStageCount));
      return;
    }
    const std::int64_t task = i - stage_work;
    outputs[static_cast<std::size_t>(task)] = output_checks(
        audit_of(task / head_count), heads[static_cast<std::size_t>(task % head_count)], name);
  });
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto* first = outputs.data() + rank * head_count;
    OutputChecks worst = *first;
    for (std::int64_t i = 1; i < head_count; ++i) {
      worst = {graver(worst.out, first[i].out), graver(worst.lse, first[i].lse)};
    }
    checks.push_back(std::move(worst.out));
    checks.push_back(std::move(worst.lse));
  }
  return checks;
}

}  // namespace mladcp
