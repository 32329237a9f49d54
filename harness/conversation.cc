#include "harness/conversation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/bfloat16.h"
#include "harness/judged_step.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr int kTurns = 3;
constexpr int kDecodeSteps = 2;  // a turn
constexpr int kPrefills = kTurns + 1;

// The step's problem: contents of its own, but for the tokens, which are the conversation's.
DecodeProblem step_problem(const Scenario& scenario, const ConversationStep& step,
                           const DecodeProblem& conversation, std::uint64_t seed) {
  const ModelConfig model = scenario.model_config();
  DecodeProblem problem =
      random_decode_problem(model.dims, model.softmax_scale(), scenario.parallel.heads,
                            step.requests, {.seed = seed}, threads_per_rank(1));
  const std::int64_t width = problem.dims.row();
  for (std::size_t b = 0; b < step.requests.size(); ++b) {
    std::copy_n(conversation.kv.as<BFloat16>() + conversation.kv_begin[b] * width,
                step.requests[b].length * width,
                problem.kv.as<BFloat16>() + problem.kv_begin[b] * width);
  }
  return problem;
}

// Later steps count their collectives on.
void append_step(ProbeOutcome& all, ProbeOutcome step, const std::string& label,
                 std::int64_t& sequence) {
  for (Check& check : step.checks) {
    if (check.status == CheckStatus::kFail) check.message = label + ": " + check.message;
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

std::vector<ConversationStep> plan_conversation(const Scenario& scenario) {
  const ParallelConfig& config = scenario.parallel;
  const std::size_t requests = scenario.seq_lens.size();
  std::vector<std::int64_t> length(requests);  // so far
  for (std::size_t b = 0; b < requests; ++b) {
    const std::int64_t grown =
        kPrefills * scenario.new_tokens[b] + std::int64_t{kTurns} * kDecodeSteps * scenario.q_len;
    length[b] = std::max<std::int64_t>(0, scenario.seq_lens[b] - grown);
  }
  std::vector<ConversationStep> steps;
  // again[b]: tokens before length[b] that the step computes once more.
  const auto add = [&](bool prefill, const std::string& label, const auto& again,
                       const auto& added) {
    ConversationStep step{prefill, label, {}};
    for (std::size_t b = 0; b < requests; ++b) {
      const std::int64_t missed = again(b);
      length[b] += added(b);
      step.requests.push_back({length[b], missed + added(b)});
    }
    steps.push_back(std::move(step));
  };
  const auto none = [](std::size_t) { return std::int64_t{0}; };
  const auto missed = [&](std::size_t b) {
    return length[b] - prefix_hit_length(config.sharding(), length[b], config.page_size);
  };
  const auto new_tokens = [&](std::size_t b) { return scenario.new_tokens[b]; };
  const auto one_step = [&](std::size_t) { return scenario.q_len; };
  for (int turn = 1; turn <= kTurns; ++turn) {
    const std::string name = "turn " + std::to_string(turn);
    add(true, name + " prefill", missed, new_tokens);
    if (turn == 1) add(true, name + " prefill, second piece", none, new_tokens);
    for (int i = 1; i <= kDecodeSteps; ++i) {
      add(false, name + " decode step " + std::to_string(i), none, one_step);
    }
  }
  return steps;
}

ProbeOutcome judge_conversation(const ProbeContext& context, float latent_mean) {
  const Scenario& scenario = context.scenario;
  const ParallelConfig& config = scenario.parallel;
  const std::vector<ConversationStep> steps = plan_conversation(scenario);
  std::vector<StepRequest> whole = steps.back().requests;
  for (StepRequest& request : whole) request.q_len = 0;
  const ModelConfig model = scenario.model_config();
  const DecodeProblem conversation = random_decode_problem(
      model.dims, model.softmax_scale(), config.heads, whole,
      {.seed = scenario.seed, .latent_mean = latent_mean}, threads_per_rank(1));
  const PagedLayout layout =
      shuffled_layout(config.sharding(), config.page_size, whole, scenario.seed);

  ProbeOutcome all;
  std::int64_t sequence = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double share = 1.0 / static_cast<double>(steps.size());
    const Progress part = [&](double done, std::string_view next) {
      context.progress((static_cast<double>(i) + done) * share,
                       steps[i].label + ": " + std::string(next));
    };
    const ProbeContext step{scenario, context.backend, context.variation, part};
    const DecodeProblem problem = step_problem(scenario, steps[i], conversation, scenario.seed + i);
    append_step(all,
                steps[i].prefill ? judge_prefill_step(step, scenario, problem, layout)
                                 : judge_decode_step(step, scenario, problem, layout),
                steps[i].label, sequence);
  }
  return all;
}

}  // namespace mladcp
