// The census of a chunked prefill.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "harness/census_steps.h"
#include "harness/findings.h"
#include "harness/judged_step.h"
#include "harness/prefill_run.h"

namespace mladcp {
namespace {

// Of each request [B]: the context positions begin .. end - 1, and perhaps its new tokens.
struct CountedKeys {
  std::vector<std::int64_t> begin, end;
  bool new_tokens = false;
};

// Counts one rank's keys while its step runs.
class CensusObserver final : public PrefillObserver {
 public:
  CensusObserver(const CensusCount::Setting& setting, const PrefillExpectation& expectation,
                 int rank)
      : setting_(setting),
        expectation_(expectation),
        causal_(setting, "causal", rank),
        context_(setting, "context attention", rank),
        merge_(setting, "merge", rank),
        output_(setting, "output", rank) {
    const std::size_t requests = expectation.requests().size();
    none_ = {std::vector<std::int64_t>(requests, 0), std::vector<std::int64_t>(requests, 0)};
    so_far_ = none_;
    so_far_.new_tokens = true;
  }

  void saw_causal(const TensorView& out, const TensorView& lse, Stream stream) override {
    count(causal_, "new tokens' output", out, lse, so_far_, "", stream);
  }
  void saw_partial(const TensorView& out, const TensorView& lse, Stream stream) override {
    ++chunk_;
    CountedKeys keys = none_;
    if (chunk_ < expectation_.chunks()) {
      for (const auto& [request, start, length] : expectation_.chunk(chunk_).pieces) {
        const auto b = static_cast<std::size_t>(request);
        keys.begin[b] = start;
        keys.end[b] = start + length;
        so_far_.end[b] = start + length;
      }
    }
    count(context_, "partial output", out, lse, keys, chunk_part(), stream);
  }
  void after_merge(const TensorView& running, const TensorView& lse, Stream stream) override {
    count(merge_, "running output", running, lse, so_far_, chunk_part(), stream);
  }
  void saw_output(const PrefillRankOutcome& outcome) {
    CountedKeys all = none_;
    all.new_tokens = true;
    for (std::size_t b = 0; b < all.end.size(); ++b)
      all.end[b] = expectation_.requests()[b].context;
    count(output_, "output", outcome.output, outcome.lse, all, "", {});
  }

  std::vector<Check> checks() const {
    return {causal_.check(), context_.check(), merge_.check(), output_.check()};
  }

 private:
  std::string chunk_part() const { return fmt::format("chunk {}, ", chunk_); }

  // out [T, H, Vd] fp32 or bf16, lse [T, H] fp32.
  void count(CensusCount& counted, const char* tensor, const TensorView& out, const TensorView& lse,
             const CountedKeys& keys, const std::string& part, Stream stream) const {
    const Tensor outs = copied_to_host(out, stream);
    const Tensor lses = copied_to_host(lse, stream);
    const std::int64_t heads = out.size(1);
    const std::int64_t width = out.size(2);
    std::vector<double> channels(static_cast<std::size_t>(width));
    std::int64_t row = 0;
    for (std::size_t b = 0; b < keys.end.size(); ++b) {
      const auto& [context, added] = expectation_.requests()[b];
      for (std::int64_t visible = context + 1; visible <= context + added; ++visible, ++row) {
        const auto expected = [&, context = context](std::int64_t p) {
          return p < context ? p >= keys.begin[b] && p < keys.end[b]
                             : keys.new_tokens && p < visible;
        };
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t window = setting_.pass.audited_window(h, visible);
          if (window < 0) continue;
          load(channels, outs, (row * heads + h) * width);
          counted.take({tensor, row, h, static_cast<std::int64_t>(b), window, part}, channels,
                       lses.as<const float>()[row * heads + h], expected);
        }
      }
    }
  }

  static void load(std::vector<double>& channels, const TensorView& out, std::int64_t begin) {
    const auto count = static_cast<std::int64_t>(channels.size());
    for (std::int64_t c = 0; c < count; ++c) {
      channels[static_cast<std::size_t>(c)] = out.dtype == DType::kBF16
                                                  ? out.as<const BFloat16>()[begin + c].to_float()
                                                  : out.as<const float>()[begin + c];
    }
  }

  CensusCount::Setting setting_;
  const PrefillExpectation& expectation_;
  CensusCount causal_, context_, merge_, output_;
  CountedKeys none_, so_far_;
  std::int64_t chunk_ = -1;
};

// What one pass finds on one group.
void count_pass(const ProbeContext& step, const CensusCount::Setting& setting,
                const DecodeProblem& problem, std::int64_t group, ProbeOutcome& mine) {
  const Scenario& census = step.scenario;
  const PrefillExpectation expectation(census, problem, setting.layout);
  std::vector<CensusObserver> of_ranks;
  of_ranks.reserve(static_cast<std::size_t>(census.parallel.dcp));
  for (int rank = 0; rank < static_cast<int>(census.parallel.dcp); ++rank) {
    of_ranks.emplace_back(setting, expectation, rank);
  }
  PrefillGroupOutcome outcome = run_prefill_group(
      census, problem, setting.layout, group, step.backend, step.variation, observers(of_ranks));
  for (const PrefillRankOutcome& at_rank : outcome.ranks) {
    CensusObserver& observer = of_ranks[static_cast<std::size_t>(at_rank.rank)];
    observer.saw_output(at_rank);
    append(mine, observer.checks(), group, census.parallel.dcp);
  }
  if (setting.pass.first_window == 0) {
    append(mine, std::move(outcome.calls), group, census.parallel.dcp);
  }
  mine.step_seconds = std::max(mine.step_seconds, outcome.seconds);
}

}  // namespace

ProbeOutcome count_prefill(const ProbeContext& step, const PhasePlan& plan) {
  const Scenario& census = step.scenario;
  ProbeOutcome mine;
  if (census.collective == "fake") {
    mine.checks.push_back(skipped("output", Check::kAllRanks, "each key once",
                                  "the fake group's peers are copies of one rank"));
    return gathered_at_root(step.backend, std::move(mine));
  }
  const ParallelConfig& config = census.parallel;
  const std::vector<CensusPass> passes =
      census_passes(census, census.model_config().dims.value, config.local_heads());
  const PagedLayout layout = plan.layout(config, plan.seed);
  for_each_pass(step, passes,
                [&](const CensusPass& pass, const DecodeProblem& problem, std::int64_t group) {
                  count_pass(step, {census, pass, layout}, problem, group, mine);
                });
  return gathered_at_root(step.backend, std::move(mine));
}

}  // namespace mladcp
