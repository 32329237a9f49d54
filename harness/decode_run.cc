#include "harness/decode_run.h"

#include <string>
#include <utility>

#include "core/decode.h"
#include "harness/outcome_codec.h"
#include "harness/rank_inputs.h"
#include "harness/rank_step.h"

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
  const ParallelConfig& config = task.scenario.parallel;
  RankStep rank(task.backend, task.variation, config, collective);
  outcome.plan = plan_decode(config.sharding(), rank.rank(), config.page_size,
                             task.problem.requests, task.layout.table);
  const RankInputs inputs = make_rank_inputs(config, task.problem, task.layout, task.group,
                                             rank.rank(), rank.device(), rank.stream());
  DecodeInputs views = inputs.views(config);
  if (rank.variation() != nullptr) {
    rank.variation()->change_plan(rank.rank(), outcome.plan);
    rank.variation()->change_inputs(rank.rank(), views, rank.stream());
  }
  // Taps outermost: they see what a faulty operation made of its input.
  TappedOps tapped(rank.ops(), outcome.taps);
  TappingCollective tapped_group(rank.collective(), outcome.taps);

  DecodeWorkspace workspace(rank.device(), rank.config(), task.problem.dims,
                            rank.plain_ops().attention, limits_of(outcome.plan));
  workspace.load(outcome.plan, rank.stream());
  const double seconds = seconds_of(rank, tapped_group, [&] {
    decode(rank.config(), task.problem.softmax_scale, views, workspace, tapped.ops(), tapped_group,
           rank.stream());
  });
  outcome.cache_after = copied_to_host(inputs.cache, rank.stream());
  outcome.output = copied_to_host(workspace.output(), rank.stream());
  return seconds;
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
  GroupOutcome outcome;
  outcome.group = group;
  outcome.ranks.resize(static_cast<std::size_t>(scenario.parallel.dcp));
  const RankTask task{scenario, problem, layout, group, backend, variation};
  GroupRun run = run_ranks(scenario, backend, [&](Collective& collective) {
    return run_rank(task, collective, outcome.ranks[static_cast<std::size_t>(collective.rank())]);
  });
  outcome.calls = std::move(run.calls);
  if (ProcessLink* link = backend.link()) collect_at_root(*link, outcome, run.seconds);
  outcome.seconds = run.slowest();
  return outcome;
}

}  // namespace mladcp
