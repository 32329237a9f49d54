// A decode schedule, read as the list of pieces its parts walk.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_ops.h"

namespace mladcp {

// One request's keys in one part: split number `split` of the whole step (num_splits[request] and
// up). Several pieces of a request are merged in split order.
struct DecodePiece {
  std::int64_t request = 0;
  std::int64_t split = 0;
  std::int64_t begin_key = 0;
  std::int64_t end_key = 0;
};

// The pieces in the order of their splits. key_count[b]: keys of request b, beyond which blocks are
// skipped. The schedule is followed, not corrected: keys no part names are not attended, as on a
// device. InvalidArgument where following it would leave memory or write one split twice.
std::vector<DecodePiece> read_schedule(const ScheduleTensors& schedule,
                                       const std::vector<std::int64_t>& key_count);

}  // namespace mladcp
