// A group of which only this rank exists: for tests of order, axis, shape and dtype.
#pragma once

#include <vector>

#include "collectives/call_log.h"
#include "collectives/placement.h"
#include "core/collective.h"

namespace mladcp {

// Behaves as if every peer held this rank's input: all_gather repeats it, reduce_scatter returns
// world_size times slice rank, all_to_all world_size copies of block rank. Every call goes into the
// log, which outlives the collective.
class FakeCollective final : public Collective {
 public:
  FakeCollective(int rank, int world_size, CallLog& log);  // InvalidArgument: no such rank

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(inputs_.size()); }

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  int rank_;
  CallLog& log_;
  std::vector<TensorView> inputs_;
  Placement placement_;
};

}  // namespace mladcp
