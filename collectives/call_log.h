// The collectives of a run as plain records: what reports print and golden tests compare.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/collective.h"

namespace mladcp {

struct CallRecord {
  int rank = 0;
  CollectiveCall call;
  std::int64_t in_bytes = 0;
  std::int64_t out_bytes = 0;
  std::int64_t wire_bytes = 0;  // what one rank must receive: core/collective.h
  // Host clock, since the log began. On a GPU these are the times of enqueueing.
  double start_us = 0.0;
  double end_us = 0.0;
  bool completed = false;  // false: the call threw
};

// Thread safe: the ranks of a group may share one log.
class CallLog {
 public:
  void append(const CallRecord& record);
  std::vector<CallRecord> records() const;  // by rank, each rank's in call order
  std::vector<CallRecord> of_rank(int rank) const;
  double elapsed_us() const;  // since the log began
  void clear();               // forgets the records, not the clock

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::vector<CallRecord> records_;
};

// The sizes filled in; times and completion are the caller's.
CallRecord make_record(const CollectiveCall& call, int rank, int world_size);

}  // namespace mladcp
