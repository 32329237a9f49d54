#include "harness/judged_step.h"

#include <algorithm>
#include <utility>

#include "harness/bound_checks.h"
#include "harness/exact_checks.h"
#include "harness/prefill_checks.h"
#include "harness/prefill_run.h"
#include "reference/parallel_for.h"

namespace mladcp {

DecodeProblem random_problem(const Scenario& scenario, float latent_mean) {
  const ModelConfig model = scenario.model_config();
  return random_decode_problem(
      model.dims, model.softmax_scale(), scenario.parallel.heads, scenario.step_requests(),
      {.seed = scenario.seed, .latent_mean = latent_mean}, threads_per_rank(1));
}

ProbeOutcome judge_decode_problem(const ProbeContext& context, const Scenario& scenario,
                                  const DecodeProblem& problem, std::uint64_t page_seed) {
  const ParallelConfig& config = scenario.parallel;
  return judge_decode_step(
      context, scenario, problem,
      shuffled_layout(config.sharding(), config.page_size, problem.requests, page_seed));
}

ProbeOutcome judge_decode_step(const ProbeContext& context, const Scenario& scenario,
                               const DecodeProblem& problem, const PagedLayout& layout) {
  const ParallelConfig& config = scenario.parallel;
  ProbeOutcome result;
  const GroupRange groups = simulated_groups(scenario);
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    const double share = 1.0 / static_cast<double>(groups.last - groups.first);
    const double done = static_cast<double>(group - groups.first) * share;
    context.progress(done, "running the ranks");
    GroupOutcome outcome =
        run_decode_group(scenario, problem, layout, group, context.backend, context.variation);
    if (!outcome.complete) continue;
    context.progress(done + share / 2, "checking against the reference");
    append(
        result,
        exact_decode_checks(scenario, problem, layout, outcome, context.backend.schedule_params()),
        group, config.dcp);
    append(result,
           bounded_decode_checks(scenario, problem, outcome,
                                 context.backend.numerics(config, scenario.q_len),
                                 context.backend.sum_roundings(static_cast<int>(config.dcp))),
           group, config.dcp);
    append(result, std::move(outcome.calls), group, config.dcp);
    result.step_seconds = std::max(result.step_seconds, outcome.seconds);
  }
  return result;
}

ProbeOutcome judge_prefill_step(const ProbeContext& context, const Scenario& scenario,
                                const DecodeProblem& problem, const PagedLayout& layout) {
  const ParallelConfig& config = scenario.parallel;
  std::vector<PrefillRequest> requests;
  for (const StepRequest& request : problem.requests) {
    requests.push_back({request.length - request.q_len, request.q_len});
  }
  // Any rank's plan: what the expectation takes of it is the same on all.
  const PrefillExpectation expectation(
      scenario, problem,
      plan_prefill(chunk_geometry(scenario), {0, layout.pages}, requests, layout.table));
  const PrefillSample sample = sample_prefill(scenario, problem.dims, requests);
  ProbeOutcome result;
  const GroupRange groups = simulated_groups(scenario);
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    const double share = 1.0 / static_cast<double>(groups.last - groups.first);
    const double done = static_cast<double>(group - groups.first) * share;
    context.progress(done, "running the ranks");
    PrefillGroupOutcome outcome = run_prefill_group(scenario, problem, layout, expectation, sample,
                                                    group, context.backend, context.variation);
    context.progress(done + share / 2, "checking against the reference");
    append(result, exact_prefill_checks(scenario, problem, layout, expectation, outcome), group,
           config.dcp);
    append(result,
           bounded_prefill_checks(scenario, problem, expectation, sample, outcome,
                                  context.backend.prefill_formats()),
           group, config.dcp);
    append(result, std::move(outcome.calls), group, config.dcp);
    result.step_seconds = std::max(result.step_seconds, outcome.seconds);
  }
  return result;
}

std::vector<GroupOutcome> run_all_groups(const ProbeContext& context, const Scenario& scenario,
                                         const DecodeProblem& problem, std::uint64_t page_seed) {
  const ParallelConfig& config = scenario.parallel;
  const PagedLayout layout =
      shuffled_layout(config.sharding(), config.page_size, problem.requests, page_seed);
  std::vector<GroupOutcome> outcomes;
  const GroupRange groups = simulated_groups(scenario);
  for (std::int64_t group = groups.first; group < groups.last; ++group) {
    context.progress(
        static_cast<double>(group - groups.first) / static_cast<double>(groups.last - groups.first),
        "running the ranks");
    outcomes.push_back(
        run_decode_group(scenario, problem, layout, group, context.backend, context.variation));
  }
  return outcomes;
}

}  // namespace mladcp
