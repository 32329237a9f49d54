// One problem run on every group of a scenario and judged stage by stage: what most probes are made
// of.
#pragma once

#include "harness/decode_run.h"
#include "harness/probe.h"
#include "harness/problem.h"

namespace mladcp {

// Runs and judges `problem`, a decode step, on a given layout.
ProbeOutcome judge_decode_step(const ProbeContext& context, const Scenario& scenario,
                               const DecodeProblem& problem, const PagedLayout& layout);
// The same with pages in the order that `page_seed` shuffles them.
ProbeOutcome judge_decode_problem(const ProbeContext& context, const Scenario& scenario,
                                  const DecodeProblem& problem, std::uint64_t page_seed);

// A chunked prefill: request b has length - q_len tokens of context and q_len new ones.
ProbeOutcome judge_prefill_step(const ProbeContext& context, const Scenario& scenario,
                                const DecodeProblem& problem, const PagedLayout& layout);
// The scenario's requests with random contents.
DecodeProblem random_problem(const Scenario& scenario, float latent_mean);

// Runs only: every group's outcome, for probes that compare two runs.
std::vector<GroupOutcome> run_all_groups(const ProbeContext& context, const Scenario& scenario,
                                         const DecodeProblem& problem, std::uint64_t page_seed);

}  // namespace mladcp
