// Time of the metadata kernel on the card: microseconds a launch, in a graph of 20 launches and
// alone.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_timing.h"
#include "kernels/device/cuda_device.h"
#include "kernels/device/cuda_error.h"
#include "kernels/metadata/metadata.h"

namespace mladcp {
namespace {

constexpr int kLaunches = 20;  // of one graph

enum Lengths : std::int64_t { kEqual, kRagged, kShort };

std::vector<std::int32_t> lengths_of(std::int64_t kind, std::int64_t batch) {
  std::mt19937 random(7);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch));
  for (std::int32_t& length : lengths) {
    switch (kind) {
      case kEqual:
        length = 4096;
        break;
      case kRagged:  // 1 .. 32768, every octave as likely
        length = static_cast<std::int32_t>(random() % (1U << (random() % 16)) + 1);
        break;
      default:  // starts of requests everywhere: a part's end snaps nearly always
        length = static_cast<std::int32_t>(random() % 200);
        break;
    }
  }
  return lengths;
}

__global__ void empty_kernel() {}

struct Timed {
  cudaStream_t stream;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;

  explicit Timed(Stream s) : stream(static_cast<cudaStream_t>(s.handle)) {
    check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  }
  ~Timed() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }

  template <typename Work>
  double seconds(const Work& work) {
    check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    work();
    check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(ms);
  }
};

// Launches `launch` alone between two events, or 20 times in a graph between two events.
template <typename Launch>
void time_launches(benchmark::State& state, Stream stream, bool in_graph, const Launch& launch) {
  Timed timed(stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  if (in_graph) {
    check_cuda(cudaStreamBeginCapture(timed.stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < kLaunches; ++i) launch();
    check_cuda(cudaStreamEndCapture(timed.stream, &graph), "end capture");
    check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  }
  const auto once = [&] {
    if (in_graph) {
      check_cuda(cudaGraphLaunch(replay, timed.stream), "cudaGraphLaunch");
    } else {
      launch();
    }
  };
  for (int i = 0; i < 20; ++i) timed.seconds(once);
  std::vector<double> all;
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = timed.seconds(once) / (in_graph ? kLaunches : 1);
    state.SetIterationTime(seconds);
    all.push_back(seconds);
  }
  std::sort(all.begin(), all.end());
  state.counters["median_us"] = 1e6 * all[all.size() / 2];
  state.counters["p99_us"] = 1e6 * all[all.size() * 99 / 100];
  if (in_graph) {
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }
}

// Arguments: requests, parts, kind of lengths, in a graph.
void metadata(benchmark::State& state) {
  CudaDevice device(0);
  const Stream stream = device.create_stream();
  {
    const std::int64_t requests = state.range(0);
    const std::int64_t parts = state.range(1);
    const std::vector<std::int32_t> host = lengths_of(state.range(2), requests);
    const Tensor lengths(device, DType::kI32, {requests}, "lengths");
    const Tensor part_tensor(device, DType::kI32, {parts, kPartFields}, "parts");
    const Tensor split_tensor(device, DType::kI32, {requests + 1}, "num_splits");
    device.copy_from_host(lengths.as<void>(), host.data(), host.size() * 4, stream);
    time_launches(state, stream, state.range(3) != 0, [&] {
      build_schedule_on_device({part_tensor, split_tensor}, lengths, ScheduleDialect::kBlocks, {},
                               stream);
    });
    state.SetLabel(device.properties().name);
  }
  device.destroy_stream(stream);
}

// What a launch costs that does nothing.
void empty(benchmark::State& state) {
  CudaDevice device(0);
  const Stream stream = device.create_stream();
  time_launches(state, stream, state.range(0) != 0, [&] {
    empty_kernel<<<1, 1024, 0, static_cast<cudaStream_t>(stream.handle)>>>();
    check_launch("empty_kernel");
  });
  device.destroy_stream(stream);
}

BENCHMARK(empty)->ArgName("graph")->Arg(1)->Arg(0)->UseManualTime()->Iterations(400)->Unit(
    benchmark::kMicrosecond);
BENCHMARK(metadata)
    ->ArgNames({"B", "parts", "lengths", "graph"})
    ->ArgsProduct({{1, 128, 512, 4096, 16384}, {66, 132}, {kEqual, kRagged, kShort}, {1}})
    ->ArgsProduct({{128}, {66, 132}, {kRagged}, {0}})
    ->UseManualTime()
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) { return mladcp::run_gpu_benchmarks(argc, argv); }
