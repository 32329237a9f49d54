#include "harness/prefill_run.h"

#include <algorithm>

#include "core/prefill.h"
#include "harness/rank_inputs.h"
#include "harness/rank_step.h"

namespace mladcp {
namespace {

struct RankTask {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const PagedLayout& layout;
  std::int64_t group;
  Backend& backend;
  const Variation* variation;
};

// Prefill holds neither the queries nor the W_UV of other ranks' heads, whatever decode does.
ParallelConfig own_heads_only(ParallelConfig config) {
  config.replicate_query = false;
  config.project_before_merge = false;
  return config;
}

// [T, H, P + R] of the rank's heads.
Tensor joined_query(const RankTask& task, const RankStep& rank) {
  const HeadRange heads = local_heads(task.scenario.parallel, task.group, rank.rank());
  const MlaDims& dims = task.problem.dims;
  const Tensor query(host_device(), DType::kBF16,
                     {task.problem.rows(), heads.count, dims.nope + dims.rope}, "query");
  host_device().copy_strided(query.view().narrow(2, 0, dims.nope),
                             task.problem.q_nope.view().narrow(1, heads.begin, heads.count), {});
  host_device().copy_strided(query.view().narrow(2, dims.nope, dims.rope),
                             task.problem.q_rope.view().narrow(1, heads.begin, heads.count), {});
  return copied_to_device(query, rank.device(), rank.stream());
}

// Returns the seconds the step itself took.
double run_rank(const RankTask& task, Collective& collective, PrefillObserver& observer,
                PrefillRankOutcome& outcome) {
  const ParallelConfig config = own_heads_only(task.scenario.parallel);
  RankStep rank(task.backend, task.variation, config, collective);
  outcome.rank = rank.rank();
  outcome.plan = plan_prefill(chunk_geometry(task.scenario), {rank.rank(), task.layout.pages},
                              prefill_requests(task.problem), task.layout.table);
  const RankInputs inputs = make_rank_inputs(config, task.problem, task.layout, task.group,
                                             rank.rank(), rank.device(), rank.stream());
  const Tensor query = joined_query(task, rank);
  PrefillInputs views = {query,       inputs.kv_c, inputs.k_pe,
                         inputs.w_uk, inputs.w_uv, {inputs.cache, config.k_scale}};
  if (rank.variation() != nullptr) {
    rank.variation()->change_prefill_plan(rank.rank(), outcome.plan);
    rank.variation()->change_prefill_inputs(rank.rank(), views, rank.stream());
  }
  // Observed outermost: an observer sees what a faulty operation made of its input.
  ObservedOps observed(rank.ops(), observer);
  ObservedCollective observed_group(rank.collective(), observer);

  PrefillWorkspace workspace(rank.device(), rank.config(), task.problem.dims,
                             {outcome.plan.rows(), task.scenario.workspace_rows});
  workspace.load(outcome.plan, rank.stream());
  const double seconds = seconds_of(rank, observed_group, [&] {
    prefill(rank.config(), task.problem.softmax_scale, views, workspace, observed.ops(),
            observed_group, rank.stream());
  });
  outcome.cache_after = copied_to_host(inputs.cache, rank.stream());
  outcome.output = copied_to_host(workspace.output(), rank.stream());
  outcome.lse = copied_to_host(workspace.running_lse(), rank.stream());
  return seconds;
}

}  // namespace

PrefillGroupOutcome run_prefill_group(const Scenario& scenario, const DecodeProblem& problem,
                                      const PagedLayout& layout, std::int64_t group,
                                      Backend& backend, const Variation* variation,
                                      std::span<PrefillObserver* const> observers) {
  PrefillGroupOutcome outcome;
  outcome.group = group;
  outcome.ranks.resize(static_cast<std::size_t>(scenario.parallel.dcp));
  const RankTask task{scenario, problem, layout, group, backend, variation};
  GroupRun run = run_ranks(scenario, backend, [&](Collective& collective) {
    const auto rank = static_cast<std::size_t>(collective.rank());
    return run_rank(task, collective, *observers[rank], outcome.ranks[rank]);
  });
  outcome.seconds = run.slowest();
  outcome.calls = std::move(run.calls);
  if (const ProcessLink* link = backend.link()) {
    PrefillRankOutcome own =
        std::move(outcome.ranks[static_cast<std::size_t>(link->rank_in_group())]);
    outcome.ranks.clear();
    outcome.ranks.push_back(std::move(own));
  }
  return outcome;
}

}  // namespace mladcp
