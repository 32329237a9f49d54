#include "harness/decode_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "core/decode.h"
#include "harness/outcome_codec.h"
#include "harness/rank_inputs.h"

namespace mladcp {
namespace {

DecodeLimits limits_of(const DecodePlan& plan) {
  return {plan.rows(), plan.requests(), plan.block_table.columns, plan.max_q_len};
}

struct RankTask {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const PagedLayout& layout;
  std::int64_t group;
  Backend& backend;
  const Variation* variation;
};

// Returns the seconds the step itself took.
double run_rank(const RankTask& task, Collective& collective, RankOutcome& outcome) {
  const int rank = collective.rank();
  Device& device = task.backend.device(rank);
  const Stream stream = task.backend.stream(rank);
  ParallelConfig config = task.scenario.parallel;
  outcome.plan = plan_decode(config.sharding(), rank, config.page_size, task.problem.requests,
                             task.layout.table);
  const RankInputs inputs =
      make_rank_inputs(config, task.problem, task.layout, task.group, rank, device, stream);
  DecodeInputs views = inputs.views(config);

  Ops ops = task.backend.ops(rank);
  Collective* group = &collective;
  std::unique_ptr<OpsDecorator> changed_ops;
  std::unique_ptr<Collective> changed_group;
  if (task.variation != nullptr) {
    task.variation->change_config(rank, config);
    task.variation->change_plan(rank, outcome.plan);
    task.variation->change_inputs(rank, views, stream);
    changed_ops = task.variation->decorate(rank, ops);
    changed_group = task.variation->decorate(rank, collective);
    if (changed_group != nullptr) group = changed_group.get();
  }
  // Taps outermost: they see what a faulty operation made of its input.
  TappedOps tapped(changed_ops != nullptr ? changed_ops->ops() : ops, outcome.taps);
  TappingCollective tapped_group(*group, outcome.taps);

  DecodeWorkspace workspace(device, config, task.problem.dims, ops.attention,
                            limits_of(outcome.plan));
  workspace.load(outcome.plan, stream);
  device.synchronize(stream);
  const auto begin = std::chrono::steady_clock::now();
  decode(config, task.problem.softmax_scale, views, workspace, tapped.ops(), tapped_group, stream);
  tapped_group.synchronize(stream);  // a failure of the group is known here at the latest
  device.synchronize(stream);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  outcome.cache_after = copied_to_host(inputs.cache, stream);
  outcome.output = copied_to_host(workspace.output(), stream);
  return seconds.count();
}

// Every process holds one rank; rank 0's gets the outcomes of all.
void collect_at_root(ProcessLink& link, GroupOutcome& outcome, std::vector<double>& seconds) {
  const auto own = static_cast<std::size_t>(link.rank_in_group());
  const std::vector<std::string> all =
      link.gather_at_root(encode_outcome(outcome.ranks[own], outcome.calls, seconds[own]));
  outcome.complete = !all.empty();
  if (!outcome.complete) return;
  outcome.calls.clear();
  for (std::size_t r = 0; r < all.size(); ++r) {
    DecodedOutcome decoded = decode_outcome(all[r]);
    outcome.ranks[r] = std::move(decoded.outcome);
    outcome.calls.insert(outcome.calls.end(), decoded.calls.begin(), decoded.calls.end());
    seconds[r] = decoded.seconds;
  }
}

}  // namespace

const TensorView& combined_output(const TapStore& taps) {
  return taps.has("combined.out") ? taps.at("combined.out") : taps.at("reduce_scatter.output.out");
}

GroupOutcome run_decode_group(const Scenario& scenario, const DecodeProblem& problem,
                              const PagedLayout& layout, std::int64_t group, Backend& backend,
                              const Variation* variation) {
  const auto world_size = static_cast<int>(scenario.parallel.dcp);
  GroupOutcome outcome;
  outcome.group = group;
  outcome.ranks.resize(static_cast<std::size_t>(world_size));
  std::vector<double> seconds(outcome.ranks.size(), 0.0);
  CallLog log;
  const RankTask task{scenario, problem, layout, group, backend, variation};
  backend.run_group({scenario.collective, world_size, scenario.timeout_s, scenario.validate}, log,
                    [&](Collective& collective) {
                      const auto rank = static_cast<std::size_t>(collective.rank());
                      seconds[rank] = run_rank(task, collective, outcome.ranks[rank]);
                    });
  outcome.calls = log.records();
  if (ProcessLink* link = backend.link()) collect_at_root(*link, outcome, seconds);
  outcome.seconds = *std::max_element(seconds.begin(), seconds.end());
  return outcome;
}

}  // namespace mladcp
