// Probes that compare two runs bit for bit: nothing to tolerate, nothing to derive.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "harness/exact_checks.h"
#include "harness/findings.h"
#include "harness/phase_steps.h"
#include "harness/probe.h"
#include "harness/stage_tensors.h"

namespace mladcp {
namespace {

using Kind = StageTensor::Kind;

// What a second run of the step should have made of a tensor of the first: its name and the tensor;
// nothing to compare where the name is empty.
struct Wanted {
  std::string name;
  Tensor tensor;
};
using WantedOf = std::function<Wanted(const StageTensor& first)>;

void scale_values(const Tensor& tensor, float factor) {
  const std::int64_t count = tensor.view().elements();
  if (tensor.view().dtype == DType::kF32) {
    std::transform(tensor.as<float>(), tensor.as<float>() + count, tensor.as<float>(),
                   [factor](float x) { return x * factor; });
    return;
  }
  auto* values = tensor.as<BFloat16>();
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = BFloat16::from_float(values[i].to_float() * factor);
  }
}

Wanted same(const StageTensor& first, const std::string& what) {
  return {fmt::format("{} {}", first.name, what), copied_to_host(first.tensor, {})};
}

// Every stage of both runs, rank by rank.
ProbeOutcome compare(const ProbeContext& step, const std::vector<RankStages>& first,
                     const std::vector<RankStages>& second, const WantedOf& wanted_of) {
  ProbeOutcome mine;
  for (std::size_t r = 0; r < first.size(); ++r) {
    for (std::size_t i = 0; i < first[r].tensors.size(); ++i) {
      const StageTensor& before = first[r].tensors[i];
      const Wanted wanted = wanted_of(before);
      if (wanted.name.empty()) continue;
      Check check = check_equal_bits(before.stage, first[r].rank, wanted.name,
                                     second[r].tensors.at(i).tensor, wanted.tensor);
      if (!check.message.empty() && !before.part.empty()) check.message += " (" + before.part + ")";
      mine.checks.push_back(std::move(check));
    }
  }
  const bool judged_apart = step.scenario.phase == Phase::kPrefill;
  return judged_apart ? gathered_at_root(step.backend, std::move(mine)) : mine;
}

// Every step twice, the second time with pages that `page_seed_step` deals out.
ProbeOutcome run_twice(const ProbeContext& context, std::uint64_t page_seed_step,
                       const std::string& what) {
  return judge_phase(context, [&](const ProbeContext& step, const PhasePlan& plan) {
    const Scenario& scenario = step.scenario;
    const DecodeProblem problem = random_problem(plan, scenario, 0.0F);
    const auto run = [&](std::uint64_t page_seed) {
      return run_stages(step, scenario, problem, plan.layout(scenario.parallel, page_seed));
    };
    const auto first = run(plan.seed);
    return compare(step, first, run(plan.seed + page_seed_step),
                   [&](const StageTensor& before) { return same(before, what); });
  });
}

// The same bytes in the cache under twice the scale, and logits that stay.
ProbeOutcome judge_scales(const ProbeContext& step, const PhasePlan& plan) {
  const Scenario& scenario = step.scenario;
  const ParallelConfig& config = scenario.parallel;
  const PagedLayout layout = plan.layout(config, plan.seed);
  DecodeProblem problem = random_problem(plan, scenario, 0.5F);
  const auto first = run_stages(step, scenario, problem, layout);

  Scenario rescaled = scenario;
  rescaled.parallel.k_scale *= 2.0F;
  scale_values(problem.kv, 2.0F);
  if (config.quantized_query() && scenario.phase == Phase::kDecode) {
    rescaled.parallel.q_scale *= 0.5F;
    scale_values(problem.q_nope, 0.5F);
    scale_values(problem.q_rope, 0.5F);
  } else {
    problem.softmax_scale *= 0.5F;
  }
  const auto second = run_stages(step, rescaled, problem, layout);
  return compare(step, first, second, [](const StageTensor& before) {
    if (before.kind == Kind::kQuery) return Wanted{};
    if (before.kind == Kind::kLse) return same(before, "stays under k_scale x 2, q_scale / 2");
    Wanted doubled = same(before, "doubles with k_scale");
    scale_values(doubled.tensor, 2.0F);
    return doubled;
  });
}

}  // namespace

// The same scenario twice.
ProbeOutcome run_repeat_probe(const ProbeContext& context) {
  return run_twice(context, 0, "in two equal runs");
}

// Where a page lies is nobody's business: other page numbers, the same bits.
ProbeOutcome run_parity_probe(const ProbeContext& context) {
  return run_twice(context, 1, "with other pages");
}

// Half of q_scale (softmax_scale for an unquantised query) and twice k_scale on the same bytes: the
// logits stay, the output doubles. A scale applied twice, never, or in the wrong place shows.
ProbeOutcome run_scale_probe(const ProbeContext& context) {
  if (context.scenario.parallel.kv_dtype == DType::kE4M3) return judge_phase(context, judge_scales);
  ProbeOutcome result;
  result.checks.push_back(skipped("attention", Check::kAllRanks, "scales of an fp8 cache",
                                  "a bf16 cache has no scale"));
  return result;
}

}  // namespace mladcp
