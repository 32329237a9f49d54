// Probes that compare two runs bit for bit: nothing to tolerate, nothing to derive.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "core/error.h"
#include "harness/exact_checks.h"
#include "harness/judged_step.h"
#include "harness/probe.h"

namespace mladcp {
namespace {

struct Compared {
  const char* stage;
  const char* tap;
  const char* name;
};

// The last tensors of each stage, in stage order.
constexpr Compared kCompared[] = {
    {"absorb", "absorb.out", "absorbed query"},
    {"quantise", "query.local", "query"},
    {"attention", "mask.out", "partial output"},
    {"lse", "mask.lse", "lse"},
    {"correct", "correct.out", "corrected partial"},
    {"combined", "combined.out", "combined output"},
    {"combined", "reduce_scatter.output.out", "reduced output"},
    {"projected", "project.out", "projected output"},
};

// Every stage of both runs, rank by rank.
void compare_runs(ProbeOutcome& result, const std::vector<GroupOutcome>& first,
                  const std::vector<GroupOutcome>& second, std::int64_t n,
                  const std::string& what) {
  for (std::size_t g = 0; g < first.size(); ++g) {
    if (!first[g].complete) continue;
    for (std::size_t r = 0; r < first[g].ranks.size(); ++r) {
      const TapStore& a = first[g].ranks[r].taps;
      const TapStore& b = second[g].ranks[r].taps;
      std::vector<Check> checks;
      for (const Compared& compared : kCompared) {
        if (!a.has(compared.tap) && !b.has(compared.tap)) continue;
        checks.push_back(check_equal_bits(compared.stage, static_cast<int>(r),
                                          fmt::format("{} {}", compared.name, what),
                                          b.at(compared.tap), a.at(compared.tap)));
      }
      append(result, std::move(checks), first[g].group, n);
    }
  }
}

void scale_values(const Tensor& tensor, float factor) {
  auto* values = tensor.as<BFloat16>();
  for (std::int64_t i = 0; i < tensor.view().elements(); ++i) {
    values[i] = BFloat16::from_float(values[i].to_float() * factor);
  }
}

// What tensor `tap` should be when every value doubles: exact in bf16 short of overflow.
Tensor doubled(const TensorView& tensor) {
  Tensor result = copied_to_host(tensor, {});
  scale_values(result, 2.0F);
  return result;
}

}  // namespace

// The same scenario twice.
ProbeOutcome run_repeat_probe(const ProbeContext& context) {
  const Scenario& scenario = context.scenario;
  const DecodeProblem problem = random_problem(scenario, 0.0F);
  ProbeOutcome result;
  const auto first = run_all_groups(context, scenario, problem, scenario.seed);
  const auto second = run_all_groups(context, scenario, problem, scenario.seed);
  compare_runs(result, first, second, scenario.parallel.dcp, "in two equal runs");
  return result;
}

// Where a page lies is nobody's business: other page numbers, the same bits.
ProbeOutcome run_parity_probe(const ProbeContext& context) {
  const Scenario& scenario = context.scenario;
  const DecodeProblem problem = random_problem(scenario, 0.0F);
  ProbeOutcome result;
  const auto first = run_all_groups(context, scenario, problem, scenario.seed);
  const auto second = run_all_groups(context, scenario, problem, scenario.seed + 1);
  compare_runs(result, first, second, scenario.parallel.dcp, "with other pages");
  return result;
}

// Half of q_scale (softmax_scale for an unquantised query) and twice k_scale on the same bytes: the
// logits stay, the output doubles. A scale applied twice, never, or in the wrong place shows.
ProbeOutcome run_scale_probe(const ProbeContext& context) {
  const Scenario& scenario = context.scenario;
  const ParallelConfig& config = scenario.parallel;
  ProbeOutcome result;
  if (config.kv_dtype != DType::kE4M3) {
    Check check{"attention", Check::kAllRanks, "scales of an fp8 cache", CheckStatus::kSkip};
    check.message = "a bf16 cache has no scale";
    result.checks.push_back(check);
    return result;
  }
  DecodeProblem problem = random_problem(scenario, 0.5F);
  const auto first = run_all_groups(context, scenario, problem, scenario.seed);

  Scenario rescaled = scenario;
  rescaled.parallel.k_scale *= 2.0F;
  scale_values(problem.kv, 2.0F);  // the same codes under the doubled scale
  if (config.quantized_query()) {
    rescaled.parallel.q_scale *= 0.5F;
    scale_values(problem.q_nope, 0.5F);
    scale_values(problem.q_rope, 0.5F);
  } else {
    problem.softmax_scale *= 0.5F;
  }
  const auto second = run_all_groups(context, rescaled, problem, scenario.seed);
  for (std::size_t g = 0; g < first.size(); ++g) {
    if (!first[g].complete) continue;
    for (std::size_t r = 0; r < first[g].ranks.size(); ++r) {
      const TapStore& a = first[g].ranks[r].taps;
      const TapStore& b = second[g].ranks[r].taps;
      const auto rank = static_cast<int>(r);
      append(result,
             {check_equal_bits("lse", rank, "LSE under q_scale / 2, k_scale x 2", b.at("mask.lse"),
                               a.at("mask.lse")),
              check_equal_bits("attention", rank, "output doubles with k_scale", b.at("mask.out"),
                               doubled(a.at("mask.out")))},
             first[g].group, config.dcp);
    }
  }
  return result;
}

}  // namespace mladcp
