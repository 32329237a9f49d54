// The collectives of a decode step between processes: mpirun -n 2 bench_mpi.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "bench/decode_step_calls.h"
#include "collectives/mpi_world.h"
#include "core/error.h"

namespace mladcp {
namespace {

constexpr int kCalls = 20;
constexpr int kRepeats = 5;
constexpr std::int64_t kHeads = 64;
constexpr Stream kHostStream{};

double median_call_us(const CollectiveCall& call, Collective& collective) {
  using Clock = std::chrono::steady_clock;
  const Tensor in(host_device(), call.dtype, call.in_shape, "in");
  const Tensor out(host_device(), call.dtype, call.out_shape, "out");
  host_device().fill_bytes(in.view().data, 0, static_cast<std::size_t>(in.view().bytes()),
                           kHostStream);
  make_call(collective, call, out, in, kHostStream);
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) make_call(collective, call, out, in, kHostStream);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                    kCalls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void run(MpiWorld& world) {
  const auto collective = world.make_collective();
  if (world.rank() == 0) {
    std::printf("%d processes, %d heads a rank, median of %d times the mean of %d calls\n",
                world.size(), static_cast<int>(kHeads), kRepeats, kCalls);
    std::printf("%-24s %5s %12s %10s %10s %10s\n", "collective", "B", "bytes", "us", "algbw GB/s",
                "busbw GB/s");
  }
  for (const std::int64_t requests : {1, 16, 64, 128}) {
    for (const StepCall& step : decode_step_calls(requests, kHeads, world.size())) {
      const double us = median_call_us(step.call, *collective);
      if (world.rank() != 0) continue;
      const auto bytes = static_cast<double>(algorithm_bytes(step.call));
      std::printf("%-24s %5d %12.0f %10.1f %10.2f %10.2f\n", step.label, static_cast<int>(requests),
                  bytes, us, bytes / us / 1e3,
                  static_cast<double>(wire_bytes(step.call, world.size())) / us / 1e3);
    }
  }
}

}  // namespace
}  // namespace mladcp

int main() {
  try {
    mladcp::MpiWorld world;
    try {
      mladcp::run(world);
    } catch (const mladcp::Error& error) {
      std::fprintf(stderr, "process %d: %s\n", world.rank(), error.what());
      world.abort_job(3);
    }
  } catch (const mladcp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}
