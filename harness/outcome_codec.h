// A rank's outcome as bytes and back: how process 0 gets what the other processes' ranks left
// behind.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/call_log.h"
#include "harness/decode_run.h"

namespace mladcp {

std::string encode_outcome(const RankOutcome& outcome, const std::vector<CallRecord>& calls,
                           double seconds);

struct DecodedOutcome {
  RankOutcome outcome;
  std::vector<CallRecord> calls;
  double seconds = 0.0;
};
// InvalidArgument when the bytes are no outcome of this version.
DecodedOutcome decode_outcome(std::string_view bytes);

}  // namespace mladcp
