#include "harness/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "collectives/launch_environment.h"
#include "collectives/mpi_world.h"
#include "collectives/recording_collective.h"
#include "harness/exit_status.h"
#include "reference/cpu_ops.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using std::chrono::milliseconds;

// Not every launcher says what launched_process understands.
std::string described(const LaunchedProcess& process) {
  if (process.world_size == 1) return "this process";
  return fmt::format("process {} of {}", process.rank, process.world_size);
}

// MPI_Init waits for every process of the job without end, and leaves no other way out than to end
// this one: the launcher then ends the rest. Where one runs another verb it would wait for ever.
class StartWatch {
 public:
  StartWatch(milliseconds patience, LaunchedProcess process)
      : thread_([this, patience, process] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, patience, [this] { return started_; })) return;
          fmt::print(stderr,
                     "mladcp: could not run: MPI did not start within {} ms: {} waits for one that "
                     "does not join; start all with one command, run --collective mpi, or give a "
                     "longer --timeout\n",
                     patience.count(), described(process));
          std::_Exit(kExitCouldNotRun);
        }) {}
  ~StartWatch() {
    const std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_one();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::jthread thread_;  // last: ends before what it uses
};

// To start takes a while of its own, whatever the patience for a missing rank. Later processes are
// more patient: the first that waits speaks, and the launcher ends the others meanwhile.
MpiWorld started_world(milliseconds timeout) {
  constexpr milliseconds kStart{10'000};
  constexpr milliseconds kStagger{3'000};
  constexpr int kMostStaggered = 10;
  const LaunchedProcess process = launched_process(std::getenv);
  const StartWatch watch(timeout + kStart + kStagger * std::min(process.rank, kMostStaggered),
                         process);
  return MpiWorld();
}

class MpiBackend final : public Backend, public ProcessLink {
 public:
  MpiBackend(int ranks, double timeout_s)
      : timeout_(static_cast<std::int64_t>(timeout_s * 1000.0)),
        world_(started_world(timeout_)),
        ops_(threads_per_rank(ranks)) {}

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
  std::vector<std::string> gather_everywhere(std::string_view mine) override {
    return world_.gather_everywhere(mine, timeout_);
  }
  ProcessLink* link() override { return this; }

  std::vector<std::string> gather_at_root(std::string_view mine) override {
    return world_.gather_at_root(mine, timeout_);
  }
  int rank_in_group() const override { return world_.rank(); }

 private:
  milliseconds timeout_;
  MpiWorld world_;
  CpuOps ops_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(int ranks, double timeout_s) {
  return std::make_unique<MpiBackend>(ranks, timeout_s);
}

}  // namespace mladcp
