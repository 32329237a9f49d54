#include "harness/stage_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "harness/decode_run.h"
#include "harness/judged_step.h"
#include "harness/prefill_run.h"

namespace mladcp {
namespace {

using Kind = StageTensor::Kind;

struct Tapped {
  const char* stage;
  const char* tap;
  const char* name;
  Kind kind;
};

// The last tensors of each stage of decode, in stage order.
constexpr Tapped kTapped[] = {
    {"absorb", "absorb.out", "absorbed query", Kind::kQuery},
    {"quantise", "query.local", "query", Kind::kQuery},
    {"attention", "mask.out", "partial output", Kind::kValue},
    {"lse", "mask.lse", "lse", Kind::kLse},
    {"correct", "correct.out", "corrected partial", Kind::kValue},
    {"combined", "combined.out", "combined output", Kind::kValue},
    {"combined", "reduce_scatter.output.out", "reduced output", Kind::kValue},
    {"projected", "project.out", "projected output", Kind::kValue},
};

std::vector<StageTensor> stages_of(const TapStore& taps) {
  std::vector<StageTensor> tensors;
  for (const Tapped& tapped : kTapped) {
    if (!taps.has(tapped.tap)) continue;
    tensors.push_back(
        {tapped.stage, tapped.name, tapped.kind, copied_to_host(taps.at(tapped.tap), {})});
  }
  return tensors;
}

void add_heads(std::vector<StageTensor>& tensors, const char* stage, const std::string& name,
               const WatchedHeads& heads, const std::string& part = {}) {
  if (heads.out.shape().rank() == 0) return;  // the stage never ran
  tensors.push_back({stage, name + " output", Kind::kValue, copied_to_host(heads.out, {}), part});
  tensors.push_back({stage, name + " lse", Kind::kLse, copied_to_host(heads.lse, {}), part});
}

std::vector<StageTensor> stages_of(const PrefillWatch& watch, const PrefillRankOutcome& outcome) {
  std::vector<StageTensor> tensors;
  add_heads(tensors, "causal", "causal", watch.causal());
  for (std::size_t c = 0; c < watch.chunks().size(); ++c) {
    const WatchedChunk& chunk = watch.chunks()[c];
    const std::string part = fmt::format("chunk {}", c);
    add_heads(tensors, "context attention", "partial", chunk.partial, part);
    add_heads(tensors, "merge", "running", chunk.merged, part);
  }
  tensors.push_back({"output", "output", Kind::kValue, copied_to_host(outcome.output, {})});
  tensors.push_back({"output", "lse", Kind::kLse, copied_to_host(outcome.lse, {})});
  return tensors;
}

void run_decode(const ProbeContext& context, const Scenario& scenario, const DecodeProblem& problem,
                const PagedLayout& layout, std::int64_t group, std::vector<RankStages>& all) {
  GroupOutcome outcome =
      run_decode_group(scenario, problem, layout, group, context.backend, context.variation);
  if (!outcome.complete) return;
  int rank = static_cast<int>(group * scenario.parallel.dcp);
  for (RankOutcome& at_rank : outcome.ranks) {
    all.push_back({rank++, stages_of(at_rank.taps), std::move(at_rank.output)});
  }
}

void run_prefill(const ProbeContext& context, const Scenario& scenario,
                 const DecodeProblem& problem, const PagedLayout& layout, std::int64_t group,
                 std::vector<RankStages>& all) {
  const PrefillExpectation expectation(scenario, problem, layout);
  const PrefillSample sample = sample_prefill(scenario, problem.dims, expectation.requests());
  std::vector<PrefillWatch> watches = watches_of(scenario, expectation, sample);
  PrefillGroupOutcome outcome = run_prefill_group(scenario, problem, layout, group, context.backend,
                                                  context.variation, observers(watches));
  for (PrefillRankOutcome& at_rank : outcome.ranks) {
    const PrefillWatch& watch = watches[static_cast<std::size_t>(at_rank.rank)];
    const auto rank = static_cast<int>(group * scenario.parallel.dcp) + at_rank.rank;
    std::vector<StageTensor> stages = stages_of(watch, at_rank);
    all.push_back({rank, std::move(stages), std::move(at_rank.output)});
  }
}

}  // namespace

std::vector<RankStages> run_stages(const ProbeContext& context, const Scenario& scenario,
                                   const DecodeProblem& problem, const PagedLayout& layout) {
  std::vector<RankStages> all;
  for_each_group(context, scenario, [&](std::int64_t group, const Progress& progress) {
    progress(0.0, "running the ranks");
    const auto run = scenario.phase == Phase::kPrefill ? run_prefill : run_decode;
    run(context, scenario, problem, layout, group, all);
  });
  return all;
}

}  // namespace mladcp
