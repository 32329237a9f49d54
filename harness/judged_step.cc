#include "harness/judged_step.h"

#include <algorithm>
#include <utility>

#include "harness/bound_checks.h"
#include "harness/decode_run.h"
#include "harness/exact_checks.h"
#include "harness/findings.h"
#include "harness/prefill_checks.h"

namespace mladcp {

void for_each_group(const ProbeContext& context, const Scenario& scenario,
                    const std::function<void(std::int64_t group, const Progress& progress)>& body) {
  const GroupRange groups = simulated_groups(scenario);
  const double share = 1.0 / static_cast<double>(groups.last - groups.first);
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    body(group, [&](double done, std::string_view next) {
      context.progress((static_cast<double>(group - groups.first) + done) * share, next);
    });
  }
}

std::vector<PrefillWatch> watches_of(const Scenario& scenario,
                                     const PrefillExpectation& expectation,
                                     const PrefillSample& sample, const RowNamer& named) {
  std::vector<PrefillWatch> watches;
  const auto n = static_cast<int>(scenario.parallel.dcp);
  watches.reserve(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    watches.emplace_back(expectation, sample, rank, n, scenario.collective == "fake", named);
  }
  return watches;
}

ProbeOutcome judge_decode_step(const ProbeContext& context, const Scenario& scenario,
                               const DecodeProblem& problem, const PagedLayout& layout) {
  const ParallelConfig& config = scenario.parallel;
  ProbeOutcome result;
  for_each_group(context, scenario, [&](std::int64_t group, const Progress& progress) {
    progress(0.0, "running the ranks");
    GroupOutcome outcome =
        run_decode_group(scenario, problem, layout, group, context.backend, context.variation);
    if (!outcome.complete) return;
    progress(0.5, "checking against the reference");
    append(result, exact_decode_checks(scenario, problem, layout, outcome, context.backend), group,
           config.dcp);
    append(result,
           bounded_decode_checks(scenario, problem, outcome,
                                 context.backend.numerics(config, scenario.q_len),
                                 context.backend.sum_roundings(static_cast<int>(config.dcp))),
           group, config.dcp);
    append(result, std::move(outcome.calls), group, config.dcp);
    result.step_seconds = std::max(result.step_seconds, outcome.seconds);
  });
  return result;
}

ProbeOutcome judge_prefill_step(const ProbeContext& context, const Scenario& scenario,
                                const DecodeProblem& problem, const PagedLayout& layout,
                                const PrefillFormats& formats) {
  const std::int64_t n = scenario.parallel.dcp;
  const PrefillExpectation expectation(scenario, problem, layout);
  const PrefillSample sample = sample_prefill(scenario, problem.dims, expectation.requests());
  ProbeOutcome mine;
  for_each_group(context, scenario, [&](std::int64_t group, const Progress& progress) {
    progress(0.0, "running the ranks");
    std::vector<PrefillWatch> watches = watches_of(scenario, expectation, sample);
    PrefillGroupOutcome outcome = run_prefill_group(
        scenario, problem, layout, group, context.backend, context.variation, observers(watches));
    progress(0.5, "checking against the reference");
    const JudgedPrefill judged{scenario, problem, layout, expectation, sample, outcome, watches};
    append(mine, exact_prefill_checks(judged), group, n);
    append(mine, bounded_prefill_checks(judged, formats), group, n);
    append(mine, std::move(outcome.calls), group, n);
    mine.step_seconds = std::max(mine.step_seconds, outcome.seconds);
  });
  return gathered_at_root(context.backend, std::move(mine));
}

ProbeOutcome judge_step(const ProbeContext& context, const Scenario& scenario,
                        const DecodeProblem& problem, const PagedLayout& layout) {
  return scenario.phase == Phase::kPrefill ? judge_prefill_step(context, scenario, problem, layout,
                                                                context.backend.prefill_formats())
                                           : judge_decode_step(context, scenario, problem, layout);
}

}  // namespace mladcp
