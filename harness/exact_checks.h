// Checks of a decode step that need no tolerance: what is moved, quantised, masked and called.
#pragma once

#include <vector>

#include "harness/backend.h"
#include "harness/check.h"
#include "harness/decode_run.h"

namespace mladcp {

// Stages "plan", "write", "quantise", "query", "schedule", "mask", "lse", "collectives" of every
// rank of a group that ran on `backend`. A stage that cannot be judged with the scenario's
// collective is skipped with the reason.
std::vector<Check> exact_decode_checks(const Scenario& scenario, const DecodeProblem& problem,
                                       const PagedLayout& layout, const GroupOutcome& outcome,
                                       const Backend& backend);

// An exact check that found `wrong` faults, the first of which `first` describes.
Check check_count(const std::string& stage, int rank, const std::string& name, std::int64_t wrong,
                  const std::string& first);

// Stage "collectives": the rank's calls, in order, against the wanted ones.
Check check_calls(const std::vector<CollectiveCall>& wanted, const std::vector<CallRecord>& calls,
                  int rank);

// Compares bytes of two host tensors of one dtype and shape; measured is the number of elements
// that differ, the message names the first with its coordinates.
Check check_equal_bits(const std::string& stage, int rank, const std::string& name,
                       const TensorView& got, const TensorView& wanted);

// "[3, 1, 17]" of the element with this row-major index.
std::string coordinates(const Shape& shape, std::int64_t index);
// The element as text: a number, and the code for FP8.
std::string element_text(const TensorView& tensor, std::int64_t index);

}  // namespace mladcp
