// One verdict about one stage on one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mladcp {

enum class CheckStatus { kPass, kFail, kSkip };

struct Check {
  static constexpr int kAllRanks = -1;

  std::string stage;  // "write", "absorb", "quantise", "query", "attention", ...
  int rank = kAllRanks;
  std::string name;  // what is compared: "output against fp64"
  CheckStatus status = CheckStatus::kPass;
  double measured = 0.0;  // the worst element's error, or a count of wrong elements
  double bound = 0.0;     // what that element may be off by; 0 for exact checks
  std::string message =
      {};                  // of a failure: stage, rank, tensor, index, got, wanted; of a skip: why
  std::string probe = {};  // whose problem the step ran on; set by run_scenario
  // Query rows times heads that were judged, of how many there are; 0 of 0: all.
  std::int64_t audited = 0;
  std::int64_t auditable = 0;
};

inline Check skipped(const std::string& stage, int rank, const std::string& name,
                     const std::string& why) {
  return {stage, rank, name, CheckStatus::kSkip, 0.0, 0.0, why};
}

inline bool all_hold(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    if (check.status == CheckStatus::kFail) return false;
  }
  return true;
}

}  // namespace mladcp
