// The two ways into NCCL: all GPUs in this process, or one process a GPU.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/launch_environment.h"
#include "collectives/nccl_collective.h"

namespace mladcp {

// One process, a thread a GPU.
class NcclGroup {
 public:
  // devices[r] is rank r's alone; they outlive the group. Connects all ranks.
  explicit NcclGroup(const std::vector<CudaDevice*>& devices, const NcclOptions& options = {});
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int world_size() const { return static_cast<int>(ranks_.size()); }

  // Runs body once a rank, each on its own thread. An exception on one rank aborts the others: the
  // first one that is not AbortedByPeer is thrown on, and the group stays refused.
  void run(const std::function<void(Collective&)>& body);

 private:
  std::vector<std::unique_ptr<NcclCollective>> ranks_;
};

// One process a GPU: this process' rank in its group of group_size consecutive ranks (0: all). Rank
// 0 of group g listens on environment.root_port + g. All processes call it in the same order.
// InvalidArgument when group_size does not divide the world; Timeout when a process does not come.
std::unique_ptr<NcclCollective> connect_nccl(const LaunchEnvironment& environment,
                                             CudaDevice& device, int group_size = 0,
                                             const NcclOptions& options = {});

}  // namespace mladcp
