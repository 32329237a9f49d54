// Phase "both": conversations that grow over prefills and decode steps, every step judged.
#pragma once

#include <string>
#include <vector>

#include "core/decode_plan.h"
#include "harness/probe.h"
#include "harness/scenario.h"

namespace mladcp {

struct ConversationStep {
  bool prefill = false;
  std::string label;                  // "turn 2 prefill"
  std::vector<StepRequest> requests;  // length: after the step; q_len: its new tokens
};

// Three turns, each a prefill and two decode steps of q_len tokens; the first turn's prompt comes
// in two pieces. Conversations begin with a prefix in the cache, so long that they end at seq_lens,
// or with nothing. Of what is cached when a turn begins, prefix_hit_length is a hit; the rest is
// prefilled again, with the turn's new_tokens behind it.
std::vector<ConversationStep> plan_conversation(const Scenario& scenario);

// Runs and judges the steps in order, on one layout of pages. Each starts from the cache that the
// one before must have left: its stage "write" says whether it did.
ProbeOutcome judge_conversation(const ProbeContext& context, float latent_mean);

}  // namespace mladcp
