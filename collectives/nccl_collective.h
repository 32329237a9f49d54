// One rank of a group of GPUs that talk through NCCL.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "core/collective.h"
#include "kernels/device/cuda_device.h"

namespace mladcp {

struct NcclOptions {
  // How long a call may take once it was made, the work queued before it on its stream included.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// What the ranks of one group share: made once and handed to all of them.
struct NcclId {
  std::array<char, 128> bytes = {};
};

NcclId make_nccl_id();  // NcclError

// Every dtype moves as bytes; sums are NCCL's, in fp32 or bf16: bitwise repeatable on one machine,
// but for more than two ranks not in rank order. Dense tensors with the ranks' axis in front go to
// NCCL as they are, others through scratch memory that grows to the largest call and stays. After a
// first call of every shape, calls may be captured into a graph (thread-local mode), one graph a
// rank.
//
// Calls return once enqueued. A watchdog thread polls NCCL's asynchronous errors and the age of
// each call; on an error, or after the timeout, it aborts the communicator, so that no stream and
// no rank hangs. The failure is thrown by synchronize() and by every later call: Timeout, NcclError
// or AbortedByPeer, naming operation, sequence number and rank. What ranks call is not compared; a
// ValidatingCollective round it does that.
class NcclCollective final : public Collective {
 public:
  // Returns once all ranks have come; Timeout when they do not. Every rank is a thread or a process
  // of its own. `device` outlives the collective and belongs to this rank alone.
  NcclCollective(const NcclId& id, int rank, int world_size, CudaDevice& device,
                 const NcclOptions& options = {});
  ~NcclCollective() override;
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  int rank() const override;
  int world_size() const override;
  void synchronize(Stream stream) override;

  // From any thread: gives the group up, as a peer `reason` speaks of cannot go on.
  void abort(const std::string& reason);

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  class Communicator;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace mladcp
