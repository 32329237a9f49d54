// Which query rows and heads of a prefill step FP64 judges. All of a small step; of a large one
// some, drawn by the scenario's seed, for FP64 over every head of a long batch would take hours.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kv_cache.h"
#include "core/prefill_plan.h"
#include "harness/scenario.h"

namespace mladcp {

struct PrefillSample {
  std::vector<std::int64_t> rows;   // of [0, T), rising; every request's first and last among them
  std::vector<std::int64_t> heads;  // of a rank's heads, rising

  std::int64_t pairs() const { return static_cast<std::int64_t>(rows.size() * heads.size()); }
};

// The same on every rank. --audit all: everything; a number: so many heads; auto: as many heads as
// 10^11 floating-point operations of a group allow, at least one. But for `all`, rows are about
// 128.
PrefillSample sample_prefill(const Scenario& scenario, const MlaDims& dims,
                             std::span<const PrefillRequest> requests);

}  // namespace mladcp
