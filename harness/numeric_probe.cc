// Probes judged by FP64: random contents, and contents on which loose checks look away.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/judged_step.h"
#include "harness/phase_steps.h"
#include "harness/probe.h"

namespace mladcp {
namespace {

void zero_queries(DecodeProblem& problem) {
  for (const Tensor* tensor : {&problem.q_nope, &problem.q_rope}) {
    std::fill_n(tensor->as<BFloat16>(), tensor->view().elements(), BFloat16{});
  }
}

// Random contents in a step of the scenario's phase, edited where there is something to edit.
ProbeOutcome judge_random_step(const ProbeContext& step, const PhasePlan& plan, float latent_mean,
                               const std::function<void(DecodeProblem& problem)>& edit = nullptr) {
  const Scenario& scenario = step.scenario;
  DecodeProblem problem = random_problem(plan, scenario, latent_mean);
  if (edit) edit(problem);
  return judge_step(step, scenario, problem, plan.layout(scenario.parallel, plan.seed));
}

ProbeOutcome judge_random_problem(const ProbeContext& context, float latent_mean) {
  return judge_phase(context, [&](const ProbeContext& step, const PhasePlan& plan) {
    return judge_random_step(step, plan, latent_mean);
  });
}

// RoPE channel 0 belongs to the sink: every query has q there, only the sink's key has k.
struct Sink {
  float q = 0.0F;
  float k = 0.0F;
};

constexpr float kSinkLogit = 9.0F;  // q * k * softmax scale

// None where no two codes are so large.
std::optional<Sink> sink_of(const Scenario& step) {
  constexpr float kMostQuery = 256.0F;  // the largest power of two among codes
  const ParallelConfig& config = step.parallel;
  const bool quantized = step.phase == Phase::kDecode && config.quantized_query();
  const float q_scale = quantized ? config.q_scale : 1.0F;
  const float k_scale = config.kv_dtype == DType::kE4M3 ? config.k_scale : 1.0F;
  // A power of two is exact in every format: only the key rounds. Of about the key's size, neither
  // saturates nor becomes 0 while the other has room.
  const float product = kSinkLogit / (step.model_config().softmax_scale() * q_scale * k_scale);
  const float q = std::min(kMostQuery, std::exp2(std::round(0.5F * std::log2(product))));
  const float k = product / q;
  if (k > Float8E4M3::kMax) return {};
  return Sink{q * q_scale, k * k_scale};
}

// One key of every request stands kSinkLogit above the crowd's mean logit.
void raise_sink(const Sink& sink, DecodeProblem& problem) {
  const MlaDims& dims = problem.dims;
  for (std::int64_t row = 0; row < problem.rows() * problem.heads; ++row) {
    auto* rope = problem.q_rope.as<BFloat16>() + row * dims.rope;
    std::fill_n(rope, dims.rope, BFloat16{});
    rope[0] = BFloat16::from_float(sink.q);
    auto* nope = problem.q_nope.as<BFloat16>() + row * dims.nope;
    for (std::int64_t i = 0; i < dims.nope; ++i) {
      nope[i] = BFloat16::from_float(0.125F * nope[i].to_float());  // a quiet crowd
    }
  }
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const std::int64_t length = problem.requests[b].length;
    for (std::int64_t p = 0; p < length; ++p) {
      auto* rope = problem.kv.as<BFloat16>() + (problem.kv_begin[b] + p) * dims.row() + dims.latent;
      rope[0] = BFloat16::from_float(p == length / 3 ? sink.k : 0.0F);
    }
  }
}

void make_constant(const Scenario& scenario, DecodeProblem& problem) {
  constexpr float kLatent = 1.5F;  // times k_scale: exact in e4m3 and bf16
  const ParallelConfig& config = scenario.parallel;
  const float scale = config.kv_dtype == DType::kE4M3 ? config.k_scale : 1.0F;
  zero_queries(problem);
  const MlaDims& dims = problem.dims;
  for (std::int64_t row = 0; row < problem.kv.view().size(0); ++row) {
    auto* key = problem.kv.as<BFloat16>() + row * dims.row();
    std::fill_n(key, dims.latent, BFloat16::from_float(kLatent * scale));
  }
}

}  // namespace

ProbeOutcome run_numeric_probe(const ProbeContext& context) {
  return judge_random_problem(context, 0.0F);
}

// A mean of 2 deviations in every latent channel: sums of P V no longer cancel, so an accumulator
// that drops small terms drifts.
ProbeOutcome run_shifted_probe(const ProbeContext& context) {
  return judge_random_problem(context, 2.0F);
}

// One key of every request stands 9 above the crowd's mean logit: rounding P at scale 1 flushes the
// crowd, which together outweighs the sink in long requests.
ProbeOutcome run_sink_probe(const ProbeContext& context) {
  return judge_phase(context, [](const ProbeContext& step, const PhasePlan& plan) -> ProbeOutcome {
    const auto sink = sink_of(step.scenario);
    if (!sink) {
      const ParallelConfig& config = step.scenario.parallel;
      const std::string why =
          fmt::format("q_scale * k_scale = {:.2g}: no codes make a logit of {}; give larger scales",
                      config.q_scale * config.k_scale, kSinkLogit);
      return {{skipped("attention", Check::kAllRanks, "under a sink", why)}, {}, 0.0};
    }
    return judge_random_step(step, plan, 0.5F,
                             [&](DecodeProblem& problem) { raise_sink(*sink, problem); });
  });
}

// All latents c, all logits equal: the output is exactly c at any length, however the keys are
// sharded, chunked, split and merged, and the LSE the logarithm of their number.
ProbeOutcome run_constant_probe(const ProbeContext& context) {
  return judge_phase(context, [](const ProbeContext& step, const PhasePlan& plan) {
    const Scenario& scenario = step.scenario;
    DecodeProblem problem = random_problem(plan, scenario, 0.0F);
    make_constant(scenario, problem);
    const PagedLayout layout = plan.layout(scenario.parallel, plan.seed);
    if (scenario.phase == Phase::kDecode) {
      return judge_decode_step(step, scenario, problem, layout);
    }
    // Values are latents: nothing of a key or value rounds, which equal rows would do equally, so
    // that only fp32 sums and the last rounding are left.
    make_diagonal(problem.w_uv);
    PrefillFormats formats = step.backend.prefill_formats();
    formats.projection_unit = 0.0;
    return judge_prefill_step(step, scenario, problem, layout, formats);
  });
}

}  // namespace mladcp
