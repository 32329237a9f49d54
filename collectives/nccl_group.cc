#include "collectives/nccl_group.h"

#include <cstdlib>
#include <string>
#include <thread>

#include "collectives/rank_threads.h"
#include "core/error.h"

namespace mladcp {
namespace {

// NCCL_COMM_ID makes NCCL's own bootstrap meet at a known address: every rank then computes the
// same id, and rank 0 listens there. It is read before the first connection alone, so it need not
// stay set.
class CommIdVariable {
 public:
  explicit CommIdVariable(const std::string& address) {
    setenv("NCCL_COMM_ID", address.c_str(), 1);
  }
  ~CommIdVariable() { unsetenv("NCCL_COMM_ID"); }
  CommIdVariable(const CommIdVariable&) = delete;
  CommIdVariable& operator=(const CommIdVariable&) = delete;
};

}  // namespace

NcclGroup::NcclGroup(const std::vector<CudaDevice*>& devices, const NcclOptions& options) {
  if (devices.empty()) throw InvalidArgument("devices: a group needs at least one");
  const auto world_size = static_cast<int>(devices.size());
  ranks_.resize(devices.size());
  const NcclId id = make_nccl_id();
  run_ranks(
      world_size,
      [&](int rank) {
        ranks_[rank] =
            std::make_unique<NcclCollective>(id, rank, world_size, *devices[rank], options);
      },
      [](int, const std::string&) {});
}

// All at once: NCCL may let a rank go only when its peers of the same process go too.
NcclGroup::~NcclGroup() {
  std::vector<std::jthread> threads;
  for (auto& rank : ranks_) threads.emplace_back([&rank] { rank.reset(); });
}

void NcclGroup::run(const std::function<void(Collective&)>& body) {
  run_ranks(
      world_size(), [&](int rank) { body(*ranks_[rank]); },
      [this](int failed, const std::string& reason) {
        for (const auto& rank : ranks_) {
          rank->abort("rank " + std::to_string(failed) + " failed: " + reason);
        }
      });
}

std::unique_ptr<NcclCollective> connect_nccl(const LaunchEnvironment& environment,
                                             CudaDevice& device, int group_size,
                                             const NcclOptions& options) {
  const int size = group_size == 0 ? environment.world_size : group_size;
  if (size < 0 || environment.world_size % size != 0) {
    throw InvalidArgument("group_size = " + std::to_string(group_size) + ": must divide the " +
                          std::to_string(environment.world_size) + " processes of " +
                          environment.source);
  }
  const int port = environment.root_port + environment.rank / size;
  const CommIdVariable variable(environment.root_address + ":" + std::to_string(port));
  return std::make_unique<NcclCollective>(make_nccl_id(), environment.rank % size, size, device,
                                          options);
}

}  // namespace mladcp
