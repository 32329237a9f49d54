// The steps of a scenario's phase: one of decode or prefill; of phase both, the prefills and decode
// steps of conversations that grow. Every step is a scenario of its own, so a probe knows only one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/decode_plan.h"
#include "harness/probe.h"
#include "harness/problem.h"
#include "harness/scenario.h"

namespace mladcp {

struct PhaseStep {
  std::string label;  // "turn 2 prefill"; empty in a phase of one step
  Scenario scenario;  // phase decode or prefill; a seed of its own
};

struct PhasePlan {
  std::vector<PhaseStep> steps;
  std::vector<StepRequest> longest;  // after the last step: what the pages are laid out for
  std::uint64_t seed = 0;            // of the tokens, the same in every step

  PagedLayout layout(const ParallelConfig& config, std::uint64_t page_seed) const;
};

// Phase both: three turns, each a prefill and two decode steps of q_len tokens; the first turn's
// prompt comes in two pieces. Conversations begin with a prefix in the cache, so long that they end
// at seq_lens, or with nothing. Of what is cached when a turn begins, prefix_hit_length is a hit;
// the rest is prefilled again, with the turn's new_tokens behind it.
PhasePlan plan_phase(const Scenario& scenario);

// The step's requests with random contents; what a token holds is the same in every step.
DecodeProblem random_problem(const PhasePlan& plan, const Scenario& step, float latent_mean);

// Judges every step in order and strings their findings together; step.scenario is the step's. A
// step starts from the cache that the one before must have left: its stage "write" says whether it
// did.
using StepJudge = std::function<ProbeOutcome(const ProbeContext& step, const PhasePlan& plan)>;
ProbeOutcome judge_phase(const ProbeContext& context, const StepJudge& judge);

}  // namespace mladcp
