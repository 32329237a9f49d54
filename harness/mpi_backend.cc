#include "harness/mpi_backend.h"

#include <chrono>
#include <string>

#include "collectives/mpi_world.h"
#include "collectives/recording_collective.h"
#include "core/error.h"
#include "reference/cpu_ops.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

class MpiBackend final : public Backend, public ProcessLink {
 public:
  MpiBackend(int ranks, double timeout_s)
      : timeout_(static_cast<std::int64_t>(timeout_s * 1000.0)), ops_(threads_per_rank(ranks)) {
    if (world_.size() != ranks) {
      throw InvalidArgument("collective mpi: dcp = " + std::to_string(ranks) + " but " +
                            std::to_string(world_.size()) +
                            " processes run; start with mpirun -n " + std::to_string(ranks));
    }
  }

  Device& device(int) override { return host_device(); }
  Stream stream(int) override { return {}; }
  Ops ops(int) override { return ops_.ops(); }
  ScheduleParams schedule_params(const ScheduleShape&) const override {
    return {.num_sms = CpuAttentionOps::kScheduledSms};
  }
  const NumericsProfile& numerics(const ParallelConfig&, std::int64_t) const override {
    return profiles::kCpu;
  }

  void run_group(const GroupOptions& options, CallLog& log,
                 const std::function<void(Collective&)>& body) override {
    const std::unique_ptr<Collective> collective =
        world_.make_collective({.group_size = options.world_size, .timeout = timeout_});
    RecordingCollective recorded(*collective, log);
    body(recorded);
  }
  ProcessLink* link() override { return this; }

  std::vector<std::string> gather_at_root(std::string_view mine) override {
    return world_.gather_at_root(mine, timeout_);
  }
  int rank_in_group() const override { return world_.rank(); }

 private:
  std::chrono::milliseconds timeout_;
  MpiWorld world_;
  CpuOps ops_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(int ranks, double timeout_s) {
  return std::make_unique<MpiBackend>(ranks, timeout_s);
}

}  // namespace mladcp
