#include "collectives/fake_collective.h"

#include <algorithm>

#include "core/error.h"

namespace mladcp {

FakeCollective::FakeCollective(int rank, int world_size, CallLog& log)
    : rank_(rank), log_(log), inputs_(std::max(world_size, 1)), placement_(rank, world_size) {
  if (rank < 0 || rank >= world_size) {
    throw InvalidArgument("rank = " + std::to_string(rank) + ": must be in [0, " +
                          std::to_string(world_size) + "), the world size");
  }
}

void FakeCollective::run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                         Stream stream) {
  CallRecord record = make_record(call, rank_, world_size());
  record.start_us = log_.elapsed_us();
  std::fill(inputs_.begin(), inputs_.end(), in);
  placement_.apply(call, out, inputs_, stream);
  record.end_us = log_.elapsed_us();
  record.completed = true;
  log_.append(record);
}

}  // namespace mladcp
