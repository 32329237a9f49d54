#include "collectives/call_log.h"

#include <algorithm>

namespace mladcp {

void CallLog::append(const CallRecord& record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(record);
}

std::vector<CallRecord> CallLog::records() const {
  std::vector<CallRecord> sorted;
  {
    const std::lock_guard lock(mutex_);
    sorted = records_;
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const CallRecord& a, const CallRecord& b) { return a.rank < b.rank; });
  return sorted;
}

std::vector<CallRecord> CallLog::of_rank(int rank) const {
  std::vector<CallRecord> selected;
  const std::lock_guard lock(mutex_);
  std::copy_if(records_.begin(), records_.end(), std::back_inserter(selected),
               [rank](const CallRecord& record) { return record.rank == rank; });
  return selected;
}

double CallLog::elapsed_us() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin_)
      .count();
}

void CallLog::clear() {
  const std::lock_guard lock(mutex_);
  records_.clear();
}

CallRecord make_record(const CollectiveCall& call, int rank, int world_size) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(call.dtype));
  CallRecord record;
  record.rank = rank;
  record.call = call;
  record.in_bytes = element_count(call.in_shape) * element_bytes;
  record.out_bytes = element_count(call.out_shape) * element_bytes;
  record.wire_bytes = wire_bytes(call, world_size);
  return record;
}

}  // namespace mladcp
