#include "harness/phase_steps.h"

#include <algorithm>
#include <utility>

#include "core/bfloat16.h"
#include "core/chunk_plan.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr int kTurns = 3;
constexpr int kDecodeSteps = 2;  // a turn
constexpr int kPrefills = kTurns + 1;

// Conversations as they grow, step by step.
class Conversation {
 public:
  explicit Conversation(const Scenario& scenario) : scenario_(scenario) {
    const std::size_t requests = scenario.seq_lens.size();
    for (std::size_t b = 0; b < requests; ++b) {
      const std::int64_t grown =
          kPrefills * scenario.new_tokens[b] + std::int64_t{kTurns} * kDecodeSteps * scenario.q_len;
      length_.push_back(std::max<std::int64_t>(0, scenario.seq_lens[b] - grown));
    }
  }

  // New tokens behind what is cached; a new turn computes again what its prefix cache misses.
  void prefill(const std::string& label, bool new_turn) {
    Scenario step = next_step(Phase::kPrefill);
    step.context_lens = length_;
    for (std::size_t b = 0; b < length_.size(); ++b) {
      if (new_turn) step.context_lens[b] = hit_length(length_[b]);
      length_[b] += scenario_.new_tokens[b];
      step.new_tokens[b] = length_[b] - step.context_lens[b];
    }
    steps_.push_back({label, std::move(step)});
  }

  void decode(const std::string& label) {
    Scenario step = next_step(Phase::kDecode);
    step.new_tokens.clear();
    for (std::int64_t& length : length_) length += scenario_.q_len;
    step.seq_lens = length_;
    steps_.push_back({label, std::move(step)});
  }

  PhasePlan finish() {
    std::vector<StepRequest> longest;
    for (const std::int64_t length : length_) longest.push_back({length, 0});
    return {std::move(steps_), std::move(longest), scenario_.seed};
  }

 private:
  std::int64_t hit_length(std::int64_t length) const {
    return prefix_hit_length(scenario_.parallel.sharding(), length, scenario_.parallel.page_size);
  }
  Scenario next_step(Phase phase) const {
    Scenario step = scenario_;
    step.phase = phase;
    step.seq_lens.clear();
    step.seed += steps_.size();
    return step;
  }

  const Scenario& scenario_;
  std::vector<std::int64_t> length_;  // so far
  std::vector<PhaseStep> steps_;
};

PhasePlan plan_conversation(const Scenario& scenario) {
  Conversation conversation(scenario);
  for (int turn = 1; turn <= kTurns; ++turn) {
    const std::string name = "turn " + std::to_string(turn);
    conversation.prefill(name + " prefill", true);
    if (turn == 1) conversation.prefill(name + " prefill, second piece", false);
    for (int i = 1; i <= kDecodeSteps; ++i) {
      conversation.decode(name + " decode step " + std::to_string(i));
    }
  }
  return conversation.finish();
}

// A later step counts its collectives on from `sequence`, which then counts its own.
void append_step(ProbeOutcome& all, ProbeOutcome step, const std::string& label,
                 std::int64_t& sequence) {
  for (Check& check : step.checks) {
    if (check.status == CheckStatus::kFail && !label.empty()) {
      check.message = label + ": " + check.message;
    }
    all.checks.push_back(std::move(check));
  }
  std::int64_t next = sequence;
  for (CallRecord& record : step.calls) {
    record.call.sequence += sequence;
    next = std::max(next, record.call.sequence + 1);
    all.calls.push_back(record);
  }
  sequence = next;
  all.step_seconds += step.step_seconds;
}

}  // namespace

PagedLayout PhasePlan::layout(const ParallelConfig& config, std::uint64_t page_seed) const {
  return shuffled_layout(config.sharding(), config.page_size, longest, page_seed);
}

PhasePlan plan_phase(const Scenario& scenario) {
  if (scenario.phase == Phase::kBoth) return plan_conversation(scenario);
  return {{{"", scenario}}, scenario.step_requests(), scenario.seed};
}

DecodeProblem random_problem(const PhasePlan& plan, const Scenario& step, float latent_mean) {
  const ModelConfig model = step.model_config();
  const auto draw = [&](const std::vector<StepRequest>& requests, std::uint64_t seed) {
    return random_decode_problem(model.dims, model.softmax_scale(), step.parallel.heads, requests,
                                 {.seed = seed, .latent_mean = latent_mean}, threads_per_rank(1));
  };
  DecodeProblem problem = draw(step.step_requests(), step.seed);
  if (plan.steps.size() == 1) return problem;
  const DecodeProblem conversation = draw(plan.longest, plan.seed);
  const std::int64_t width = problem.dims.row();
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    std::copy_n(conversation.kv.as<BFloat16>() + conversation.kv_begin[b] * width,
                problem.requests[b].length * width,
                problem.kv.as<BFloat16>() + problem.kv_begin[b] * width);
  }
  return problem;
}

ProbeOutcome judge_phase(const ProbeContext& context, const StepJudge& judge) {
  const PhasePlan plan = plan_phase(context.scenario);
  const double share = 1.0 / static_cast<double>(plan.steps.size());
  ProbeOutcome all;
  std::int64_t sequence = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PhaseStep& step = plan.steps[i];
    const Progress part = [&](double done, std::string_view next) {
      const std::string label = step.label.empty() ? "" : step.label + ": ";
      context.progress((static_cast<double>(i) + done) * share, label + std::string(next));
    };
    append_step(all, judge({step.scenario, context.backend, context.variation, part}, plan),
                step.label, sequence);
  }
  return all;
}

}  // namespace mladcp
