#include "harness/cuda_backend.h"

#include "harness/cuda_ranks.h"

namespace mladcp {
namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int ranks) : ranks_(std::vector<int>(static_cast<std::size_t>(ranks), 0)) {}

  Device& device(int rank) override { return ranks_.device(rank); }
  Stream stream(int rank) override { return ranks_.stream(rank); }
  Ops ops(int rank) override { return ranks_.ops(rank); }
  ScheduleParams schedule_params(const ScheduleShape& shape) const override {
    return ranks_.schedule_params(shape);
  }
  const NumericsProfile& numerics(const ParallelConfig& config, std::int64_t q_len) const override {
    return ranks_.numerics(config, q_len);
  }
  PrefillFormats prefill_formats() const override { return CudaRanks::prefill_formats(); }

 private:
  CudaRanks ranks_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int ranks) {
  return std::make_unique<CudaBackend>(ranks);
}

}  // namespace mladcp
