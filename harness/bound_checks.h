// Checks of a decode step against the FP64 reference, each within a derived bound
// (docs/numerics.md). A stage is judged on the inputs it was given, so the first stage that fails
// is the one at fault; the last check judges the whole step against the unsharded problem.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/check.h"
#include "harness/decode_run.h"
#include "reference/compare.h"
#include "reference/numerics_profile.h"

namespace mladcp {

// Stages "absorb", "attention" (output and LSE of every rank's shard), "combined", "projected",
// "output"; profile: how the device that computed rounds, sum_roundings: its reduce-scatter.
std::vector<Check> bounded_decode_checks(const Scenario& scenario, const DecodeProblem& problem,
                                         const GroupOutcome& outcome,
                                         const NumericsProfile& profile, int sum_roundings);

// One tensor against expected values; measured and bound are the worst element's. where, if given,
// says in words what that element belongs to.
Check check_within(const std::string& stage, int rank, const std::string& name,
                   const TensorView& got, const Expected& wanted,
                   const std::function<std::string(const Shape& index)>& where = nullptr);

}  // namespace mladcp
