// The census probe, and decode's part of it: counts every key on every rank's shard, after the
// combine and after the value up-projection.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/bfloat16.h"
#include "harness/census_steps.h"
#include "harness/decode_run.h"
#include "harness/judged_step.h"
#include "harness/phase_steps.h"
#include "harness/probe.h"
#include "harness/rank_inputs.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

// One pass over one group, as the judge sees it.
struct Judged {
  const Scenario& census;
  const CensusPass& pass;
  const DecodeProblem& problem;
  const PagedLayout& layout;
  const GroupOutcome& outcome;
};

// Counts the keys of one tensor [T, heads, X] bf16 with its lse(t, head).
struct Counted {
  const char* stage;
  const char* tensor;
  int rank;
  const TensorView& out;
  std::int64_t first_head;  // of the model
};

template <typename Lse, typename Visible>
Check count_keys(const Judged& judged, const Counted& counted, const Lse& lse,
                 const Visible& is_visible) {
  const CensusPass& pass = judged.pass;
  const TensorView& out = counted.out;
  const std::int64_t width = out.size(2);
  CensusCount count({judged.census, pass, judged.layout}, counted.stage, counted.rank);
  std::vector<double> channels(static_cast<std::size_t>(width));
  std::int64_t row = 0;
  for (std::size_t b = 0; b < judged.problem.requests.size(); ++b) {
    const StepRequest& request = judged.problem.requests[b];
    for (std::int64_t j = 0; j < request.q_len; ++j, ++row) {
      const std::int64_t visible = request.length - request.q_len + j + 1;
      for (std::int64_t h = 0; h < out.size(1); ++h) {
        const std::int64_t window = pass.audited_window(counted.first_head + h, visible);
        if (window < 0) continue;
        const auto* values = out.as<const BFloat16>() + (row * out.size(1) + h) * width;
        std::transform(values, values + width, channels.begin(),
                       [](BFloat16 x) { return static_cast<double>(x.to_float()); });
        count.take({counted.tensor, row, h, static_cast<std::int64_t>(b), window}, channels,
                   lse(row, h), [&](std::int64_t p) { return p < visible && is_visible(p); });
      }
    }
  }
  return count.check();
}

double log_sum_exp(const TensorView& lses, std::int64_t row, std::int64_t head) {
  double largest = -std::numeric_limits<double>::infinity();
  const auto at = [&](std::int64_t n) {
    return static_cast<double>(
        lses.as<const float>()[(n * lses.size(1) + row) * lses.size(2) + head]);
  };
  for (std::int64_t n = 0; n < lses.size(0); ++n) largest = std::max(largest, at(n));
  if (std::isinf(largest)) return largest;
  double sum = 0.0;
  for (std::int64_t n = 0; n < lses.size(0); ++n) sum += std::exp(at(n) - largest);
  return largest + std::log(sum);
}

std::vector<Check> judge(const Judged& judged) {
  const ParallelConfig& config = judged.census.parallel;
  const KvSharding sharding = config.sharding();
  const std::int64_t h = config.local_heads();
  const bool merges = config.dcp > 1 && judged.census.collective != "fake";
  std::vector<Check> checks;
  for (std::size_t r = 0; r < judged.outcome.ranks.size(); ++r) {
    const TapStore& taps = judged.outcome.ranks[r].taps;
    const auto rank = static_cast<int>(r);
    const std::int64_t group_head = judged.outcome.group * config.gathered_heads();
    const TensorView& lse = taps.at("mask.lse");
    if (judged.census.collective != "fake") {  // with fake peers the gathered heads are not theirs
      checks.push_back(count_keys(
          judged, {"attention", "partial output", rank, taps.at("mask.out"), group_head},
          [&](std::int64_t t, std::int64_t head) {
            return static_cast<double>(lse.as<const float>()[t * lse.size(1) + head]);
          },
          [&](std::int64_t p) { return sharding.owner(p) == rank; }));
    }
    if (config.dcp > 1 && !merges) continue;
    const std::int64_t own_head = group_head + rank * h;
    const auto all = [](std::int64_t) { return true; };
    const auto global_lse = [&](std::int64_t t, std::int64_t head) {
      if (config.dcp == 1) return static_cast<double>(lse.as<const float>()[t * h + head]);
      if (taps.has("correct.lses")) return log_sum_exp(taps.at("correct.lses"), t, rank * h + head);
      return static_cast<double>(taps.at("combined.lse").as<const float>()[t * h + head]);
    };
    if (config.dcp > 1) {
      checks.push_back(
          count_keys(judged, {"combined", "combined output", rank, combined_output(taps), own_head},
                     global_lse, all));
    }
    if (judged.pass.width == judged.problem.dims.value) {
      const TensorView& output = judged.outcome.ranks[r].output.view();
      checks.push_back(
          count_keys(judged, {"projected", "output", rank, output, own_head}, global_lse, all));
    }
  }
  return checks;
}

// One step of the census's phase.
ProbeOutcome count_step(const ProbeContext& step, const PhasePlan& plan) {
  const Scenario& census = step.scenario;
  if (census.phase == Phase::kPrefill) return count_prefill(step, plan);
  const ParallelConfig& config = census.parallel;
  const MlaDims dims = census.model_config().dims;
  std::vector<CensusPass> passes;
  if (!config.project_before_merge) passes = census_passes(census, dims.latent, config.heads);
  for (const CensusPass& pass : census_passes(census, dims.value, config.heads)) {
    passes.push_back(pass);
  }
  ProbeOutcome result;
  const PagedLayout layout = plan.layout(config, plan.seed);
  for_each_pass(
      step, passes, [&](const CensusPass& pass, const DecodeProblem& problem, std::int64_t group) {
        GroupOutcome outcome =
            run_decode_group(census, problem, layout, group, step.backend, step.variation);
        if (!outcome.complete) return;
        append(result, judge({census, pass, problem, layout, outcome}), group, config.dcp);
        if (&pass == passes.data()) {
          append(result, std::move(outcome.calls), group, config.dcp);
        }
        result.step_seconds = std::max(result.step_seconds, outcome.seconds);
      });
  return result;
}

}  // namespace

void for_each_pass(const ProbeContext& step, const std::vector<CensusPass>& passes,
                   const std::function<void(const CensusPass& pass, const DecodeProblem& problem,
                                            std::int64_t group)>& count) {
  const double share = 1.0 / static_cast<double>(passes.size());
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Progress part = [&](double done, std::string_view next) {
      step.progress((static_cast<double>(i) + done) * share, next);
    };
    part(0.0, "building the census");
    const DecodeProblem problem = census_problem(step.scenario, passes[i], threads_per_rank(1));
    for_each_group({step.scenario, step.backend, step.variation, part}, step.scenario,
                   [&](std::int64_t group, const Progress& progress) {
                     progress(0.0, "counting keys");
                     count(passes[i], problem, group);
                   });
  }
}

ProbeOutcome run_census_probe(const ProbeContext& context) {
  const Scenario census = census_scenario(context.scenario);
  return judge_phase({census, context.backend, context.variation, context.progress}, count_step);
}

}  // namespace mladcp
