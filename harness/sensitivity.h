// The smallest fault of each kind that the harness still names, and names at its stage: a bound
// that is never exceeded is worth nothing if it hides what it should show.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/dtype.h"
#include "harness/backend.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

struct FaultKind {
  std::string_view name;  // "output scale error"
  std::string_view unit;  // "relative", "keys", ...
  std::string_view probe;
  std::string_view stage;     // the first that must fail
  std::vector<double> sizes;  // descending
  std::unique_ptr<Variation> (*make)(double size);
  Combine combine = Combine::kAllGatherReduceScatter;
  DType reduce_dtype = DType::kBF16;
};

const std::vector<FaultKind>& fault_kinds();

struct Sensitivity {
  std::string_view kind;
  std::string_view unit;
  std::string_view probe;
  std::int64_t length = 0;  // S, in one request on two ranks
  double smallest = 0.0;    // the smallest size caught, all larger ones being caught too; 0: none
};

Scenario sensitivity_scenario(const FaultKind& kind, std::int64_t length);
// Tries the sizes of a kind on its scenario, largest first, until one is not caught.
Sensitivity smallest_caught(const FaultKind& kind, std::int64_t length, const Scenario& scenario,
                            Backend& backend);

}  // namespace mladcp
