// One rank of a group of processes. Made by MpiWorld::make_collective.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "collectives/axis_in_front.h"
#include "collectives/fingerprint.h"
#include "collectives/mpi_notices.h"
#include "collectives/mpi_transfers.h"
#include "core/collective.h"

namespace mladcp {

// Where a group lies among the processes of MPI_COMM_WORLD.
struct MpiGroup {
  int rank = 0;
  int world_size = 1;
  int first_process = 0;
  int first_tag = 0;  // kTags tags from here on are the group's alone

  static constexpr int kTags = 3;
};

// A call has two phases, both point to point: the ranks exchange what they are calling, then the
// blocks. So a missing rank is known by name, and no data moves in a call the ranks disagree about.
// Sums run in rank order like those of InProcessGroup, with the same bits. Peers hear of failures
// and departures by notices (mpi_notices.h), for which they poll while they wait.
class MpiCollective final : public Collective {
 public:
  MpiCollective(const MpiGroup& group, std::chrono::milliseconds timeout);
  ~MpiCollective() override;
  MpiCollective(const MpiCollective&) = delete;
  MpiCollective& operator=(const MpiCollective&) = delete;

  int rank() const override { return group_.rank; }
  int world_size() const override { return group_.world_size; }

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  void compare(const CollectiveCall& call);
  void exchange(const CollectiveCall& call, const DenseCall& dense);
  void reduce(const CollectiveCall& call, const DenseCall& dense, Stream stream);
  void wait(MpiTransfers& transfers, const CollectiveCall& call);
  void expect_present(const MpiTransfers& transfers, const CollectiveCall& call);
  int process(int rank) const { return group_.first_process + rank; }
  int call_tag() const { return group_.first_tag; }
  int data_tag() const { return group_.first_tag + 1; }
  std::string waiting(const CollectiveCall& call) const;

  const MpiGroup group_;
  const std::chrono::milliseconds timeout_;
  std::int64_t calls_ = 0;  // complete ones
  MpiNotices notices_;
  AxisInFront axis_;
  Scratch received_;  // the addends of a reduction
  std::vector<Fingerprint> fingerprints_;
};

}  // namespace mladcp
