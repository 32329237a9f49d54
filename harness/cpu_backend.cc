#include <string>

#include "core/error.h"
#include "harness/cpu_backend.h"
#include "reference/cpu_ops.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int ranks) : ops_(threads_per_rank(ranks)) {}

  Device& device(int) override { return host_device(); }
  Stream stream(int) override { return {}; }
  Ops ops(int) override { return ops_.ops(); }
  ScheduleParams schedule_params(const ScheduleShape&) const override {
    return {.num_sms = CpuAttentionOps::kScheduledSms};
  }
  const NumericsProfile& numerics(const ParallelConfig&, std::int64_t) const override {
    return profiles::kCpu;
  }

 private:
  CpuOps ops_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int ranks) { return std::make_unique<CpuBackend>(ranks); }

}  // namespace mladcp
