#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "collectives/nccl_group.h"
#include "collectives/recording_collective.h"
#include "collectives/validating_collective.h"
#include "core/error.h"
#include "harness/cuda_backend.h"
#include "harness/cuda_ranks.h"

namespace mladcp {
namespace {

NcclOptions nccl_options(double timeout_s) {
  return {std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000.0))};
}

// A ring hands partial sums on in the dtype that is reduced.
int roundings_of_ring(int ranks) { return std::max(1, ranks - 1); }

// body(collective) under a record of its calls; the exchange of fingerprints stays out of it.
void run_recorded(const GroupOptions& options, Collective& collective, Device& device, CallLog& log,
                  const std::function<void(Collective&)>& body) {
  if (options.validate) {
    ValidatingCollective validating(collective, device);
    RecordingCollective recorded(validating, log);
    body(recorded);
  } else {
    RecordingCollective recorded(collective, log);
    body(recorded);
  }
}

std::vector<int> cards_of_threads(int ranks) {
  const std::vector<std::string> cards = available_cuda_devices();
  if (static_cast<int>(cards.size()) < ranks) {
    throw Unsupported("collective nccl: dcp = " + std::to_string(ranks) + " wants " +
                      std::to_string(ranks) + " GPUs, one a rank, but " +
                      std::to_string(cards.size()) +
                      " are visible; use a smaller --dcp, one process a GPU on several hosts, or "
                      "--collective in_process, which simulates all ranks on one");
  }
  std::vector<int> indices(static_cast<std::size_t>(ranks));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// A launcher either shows every process all cards of its host, or its own alone.
int card_of_process(const LaunchEnvironment& environment) {
  const auto visible = static_cast<int>(available_cuda_devices().size());
  if (environment.local_rank < visible) return environment.local_rank;
  if (visible == 1 && std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) return 0;
  throw Unsupported("collective nccl: rank " + std::to_string(environment.rank) +
                    " wants the GPU of local rank " + std::to_string(environment.local_rank) +
                    ", but " + std::to_string(visible) +
                    " are visible; start as many processes a host as it has GPUs");
}

// One process, a thread and a card a rank.
class NcclThreadsBackend final : public Backend {
 public:
  NcclThreadsBackend(int ranks, double timeout_s)
      : ranks_(cards_of_threads(ranks)), group_(devices(ranks), nccl_options(timeout_s)) {}

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
  int sum_roundings(int ranks) const override { return roundings_of_ring(ranks); }

  void run_group(const GroupOptions& options, CallLog& log,
                 const std::function<void(Collective&)>& body) override {
    group_.run([&](Collective& collective) {
      run_recorded(options, collective, ranks_.device(collective.rank()), log, body);
    });
  }

 private:
  std::vector<CudaDevice*> devices(int ranks) {
    std::vector<CudaDevice*> result;
    for (int rank = 0; rank < ranks; ++rank) result.push_back(&ranks_.device(rank));
    return result;
  }

  CudaRanks ranks_;
  NcclGroup group_;
};

// This process' rank; reports travel through the group as well, before and after a step's calls.
class NcclProcessBackend final : public Backend, public ProcessLink {
 public:
  NcclProcessBackend(const LaunchEnvironment& environment, double timeout_s)
      : rank_(environment.rank),
        ranks_({card_of_process(environment)}, environment.rank),
        group_(connect_nccl(environment, ranks_.device(rank_), 0, nccl_options(timeout_s))) {}

  // The other ranks' are elsewhere: whoever asks for all gets this one's.
  Device& device(int) override { return ranks_.device(rank_); }
  Stream stream(int) override { return ranks_.stream(rank_); }
  Ops ops(int) override { return ranks_.ops(rank_); }
  ScheduleParams schedule_params(const ScheduleShape& shape) const override {
    return ranks_.schedule_params(shape);
  }
  const NumericsProfile& numerics(const ParallelConfig& config, std::int64_t q_len) const override {
    return ranks_.numerics(config, q_len);
  }
  PrefillFormats prefill_formats() const override { return CudaRanks::prefill_formats(); }
  int sum_roundings(int ranks) const override { return roundings_of_ring(ranks); }

  void run_group(const GroupOptions& options, CallLog& log,
                 const std::function<void(Collective&)>& body) override {
    run_recorded(options, *group_, ranks_.device(rank_), log, body);
  }
  ProcessLink* link() override { return this; }

  int rank_in_group() const override { return rank_; }
  std::vector<std::string> gather_at_root(std::string_view mine) override {
    const std::vector<std::int64_t> sizes = gathered_sizes(static_cast<std::int64_t>(mine.size()));
    const std::int64_t longest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<std::string> all;
    if (longest > 0) {
      std::string padded(mine);
      padded.resize(static_cast<std::size_t>(longest));
      const std::string bytes = gathered(padded);
      for (std::size_t r = 0; rank_ == 0 && r < sizes.size(); ++r) {
        all.push_back(bytes.substr(r * padded.size(), static_cast<std::size_t>(sizes[r])));
      }
    } else if (rank_ == 0) {
      all.resize(sizes.size());
    }
    return all;
  }

 private:
  std::vector<std::int64_t> gathered_sizes(std::int64_t mine) {
    std::string bytes(sizeof mine, '\0');
    std::memcpy(bytes.data(), &mine, sizeof mine);
    const std::string all = gathered(bytes);
    std::vector<std::int64_t> sizes(all.size() / sizeof mine);
    std::memcpy(sizes.data(), all.data(), all.size());
    return sizes;
  }

  // Equally many bytes of every rank, in rank order.
  std::string gathered(const std::string& mine) {
    CudaDevice& device = ranks_.device(rank_);
    const Stream stream = ranks_.stream(rank_);
    const auto size = static_cast<std::int64_t>(mine.size());
    const Tensor in(device, DType::kBytes, {1, size}, "report");
    const Tensor out(device, DType::kBytes, {group_->world_size(), size}, "reports");
    device.copy_from_host(in.view().data, mine.data(), mine.size(), stream);
    group_->all_gather(out, in, 0, stream, "report");
    group_->synchronize(stream);
    std::string all(static_cast<std::size_t>(out.view().bytes()), '\0');
    device.copy_to_host(all.data(), out.view().data, all.size(), stream);
    return all;
  }

  int rank_;
  CudaRanks ranks_;
  std::unique_ptr<NcclCollective> group_;
};

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(int ranks, double timeout_s) {
  // NVLink multicast can take the GPUs of a shared host down with it: off unless asked for.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  const auto environment = launch_environment([](const char* name) { return std::getenv(name); });
  if (!environment || environment->world_size == 1) {
    return std::make_unique<NcclThreadsBackend>(ranks, timeout_s);
  }
  if (environment->world_size != ranks) {
    throw InvalidArgument("collective nccl: dcp = " + std::to_string(ranks) + " but " +
                          std::to_string(environment->world_size) + " processes run (" +
                          environment->source + "); start " + std::to_string(ranks) +
                          ", or one process for all GPUs of this host");
  }
  return std::make_unique<NcclProcessBackend>(*environment, timeout_s);
}

}  // namespace mladcp
