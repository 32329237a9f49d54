#include "harness/prefill_run.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "core/error.h"
#include "core/prefill.h"
#include "harness/rank_inputs.h"

namespace mladcp {
namespace {

struct RankTask {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const PagedLayout& layout;
  const PrefillExpectation& expectation;
  const PrefillSample& sample;
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
Tensor joined_query(const RankTask& task, int rank, Device& device, Stream stream) {
  const HeadRange heads = local_heads(task.scenario.parallel, task.group, rank);
  const MlaDims& dims = task.problem.dims;
  const Tensor query(host_device(), DType::kBF16,
                     {task.problem.rows(), heads.count, dims.nope + dims.rope}, "query");
  host_device().copy_strided(query.view().narrow(2, 0, dims.nope),
                             task.problem.q_nope.view().narrow(1, heads.begin, heads.count), {});
  host_device().copy_strided(query.view().narrow(2, dims.nope, dims.rope),
                             task.problem.q_rope.view().narrow(1, heads.begin, heads.count), {});
  return copied_to_device(query, device, stream);
}

// Returns the seconds the step itself took.
double run_rank(const RankTask& task, Collective& collective, PrefillRankOutcome& outcome) {
  const int rank = collective.rank();
  Device& device = task.backend.device(rank);
  const Stream stream = task.backend.stream(rank);
  ParallelConfig config = own_heads_only(task.scenario.parallel);
  outcome.plan = plan_prefill(chunk_geometry(task.scenario), {rank, task.layout.pages},
                              task.expectation.requests(), task.layout.table);
  const RankInputs inputs =
      make_rank_inputs(config, task.problem, task.layout, task.group, rank, device, stream);
  const Tensor query = joined_query(task, rank, device, stream);
  PrefillInputs views = {query,       inputs.kv_c, inputs.k_pe,
                         inputs.w_uk, inputs.w_uv, {inputs.cache, config.k_scale}};

  Ops ops = task.backend.ops(rank);
  Collective* group = &collective;
  std::unique_ptr<OpsDecorator> changed_ops;
  std::unique_ptr<Collective> changed_group;
  if (task.variation != nullptr) {
    task.variation->change_config(rank, config);
    task.variation->change_prefill_plan(rank, outcome.plan);
    task.variation->change_prefill_inputs(rank, views, stream);
    changed_ops = task.variation->decorate(rank, ops);
    changed_group = task.variation->decorate(rank, collective);
    if (changed_group != nullptr) group = changed_group.get();
  }
  // Watched outermost: a watch sees what a faulty operation made of its input.
  outcome.watch =
      std::make_unique<PrefillWatch>(task.expectation, task.sample, rank, collective.world_size(),
                                     task.scenario.collective == "fake");
  WatchedOps watched(changed_ops != nullptr ? changed_ops->ops() : ops, *outcome.watch);
  WatchedCollective watched_group(*group, *outcome.watch);

  PrefillWorkspace workspace(device, config, task.problem.dims,
                             {outcome.plan.rows(), task.scenario.workspace_rows});
  workspace.load(outcome.plan, stream);
  device.synchronize(stream);
  const auto begin = std::chrono::steady_clock::now();
  prefill(config, task.problem.softmax_scale, views, workspace, watched.ops(), watched_group,
          stream);
  watched_group.synchronize(stream);  // a failure of the group is known here at the latest
  device.synchronize(stream);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  outcome.cache_after = copied_to_host(inputs.cache, stream);
  outcome.output = copied_to_host(workspace.output(), stream);
  outcome.lse = copied_to_host(workspace.running_lse(), stream);
  return seconds.count();
}

}  // namespace

ChunkGeometry chunk_geometry(const Scenario& scenario) {
  const ParallelConfig& config = scenario.parallel;
  return {config.sharding(), config.page_size, scenario.workspace_rows};
}

PrefillGroupOutcome run_prefill_group(const Scenario& scenario, const DecodeProblem& problem,
                                      const PagedLayout& layout,
                                      const PrefillExpectation& expectation,
                                      const PrefillSample& sample, std::int64_t group,
                                      Backend& backend, const Variation* variation) {
  const auto world_size = static_cast<int>(scenario.parallel.dcp);
  PrefillGroupOutcome outcome;
  outcome.group = group;
  outcome.ranks.resize(static_cast<std::size_t>(world_size));
  std::vector<double> seconds(outcome.ranks.size(), 0.0);
  CallLog log;
  const RankTask task{scenario, problem, layout, expectation, sample, group, backend, variation};
  if (backend.link() != nullptr) {
    throw Unsupported("phase prefill over processes: the collective " + scenario.collective +
                      " carries decode reports alone; use in_process");
  }
  backend.run_group({scenario.collective, world_size, scenario.timeout_s, scenario.validate}, log,
                    [&](Collective& collective) {
                      const auto rank = static_cast<std::size_t>(collective.rank());
                      seconds[rank] = run_rank(task, collective, outcome.ranks[rank]);
                    });
  outcome.calls = log.records();
  outcome.seconds = *std::max_element(seconds.begin(), seconds.end());
  return outcome;
}

}  // namespace mladcp
