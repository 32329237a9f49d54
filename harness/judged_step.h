// One problem run on every group of a scenario and judged stage by stage: what most probes are made
// of.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/prefill_watch.h"
#include "harness/probe.h"
#include "harness/problem.h"

namespace mladcp {

// Runs and judges a decode step.
ProbeOutcome judge_decode_step(const ProbeContext& context, const Scenario& scenario,
                               const DecodeProblem& problem, const PagedLayout& layout);
// Runs and judges a chunked prefill: request b has length - q_len tokens of context and q_len new
// ones. formats: what the bounds follow from.
ProbeOutcome judge_prefill_step(const ProbeContext& context, const Scenario& scenario,
                                const DecodeProblem& problem, const PagedLayout& layout,
                                const PrefillFormats& formats);
// The one of the two that scenario.phase says, a prefill with the backend's formats.
ProbeOutcome judge_step(const ProbeContext& context, const Scenario& scenario,
                        const DecodeProblem& problem, const PagedLayout& layout);

// Calls body(group, progress) for every group the scenario simulates; progress tells how far the
// group is.
void for_each_group(const ProbeContext& context, const Scenario& scenario,
                    const std::function<void(std::int64_t group, const Progress& progress)>& body);

// One watch a rank, for run_prefill_group.
std::vector<PrefillWatch> watches_of(const Scenario& scenario,
                                     const PrefillExpectation& expectation,
                                     const PrefillSample& sample, const RowNamer& named = nullptr);
template <typename Observer>
std::vector<PrefillObserver*> observers(std::vector<Observer>& of_ranks) {
  std::vector<PrefillObserver*> pointers;
  pointers.reserve(of_ranks.size());
  for (Observer& observer : of_ranks) pointers.push_back(&observer);
  return pointers;
}

}  // namespace mladcp
