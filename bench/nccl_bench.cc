// The collectives of a decode step between GPUs through NCCL: launched one by one, and inside a
// CUDA graph. One process, a thread a GPU; times are rank 0's between events. Tensors are stored as
// a step stores them, the call's axis first; those marked "tokens first" are row-major instead, and
// their times hold the copies of both sides.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/decode_step_calls.h"
#include "collectives/nccl_group.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

constexpr int kLaunches = 20;
constexpr int kReplays = 9;
constexpr std::int64_t kHeads = 64;

enum class Storage { kAxisFirst, kRowMajor };

struct Times {
  double single_us = 0.0;
  double graph_us = 0.0;
};

class Stopwatch {
 public:
  Stopwatch() {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Microseconds that `work` takes on the stream.
  double time_us(cudaStream_t stream, const std::function<void()>& work) {
    check_cuda(cudaEventRecord(begin_, stream), "cudaEventRecord");
    work();
    check_cuda(cudaEventRecord(end_, stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0.0F;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Tensor tensor_of_call(CudaDevice& device, const CollectiveCall& call, Shape shape, Storage storage,
                      const char* name) {
  if (storage == Storage::kAxisFirst) std::swap(shape[0], shape[call.dim]);
  return {device, call.dtype, shape, name};
}

// Ranks leave `together` at one time, so that nobody's clock counts the wait for a late peer.
Times time_call(const CollectiveCall& call, Storage storage, Collective& collective,
                CudaDevice& device, Stream stream, std::barrier<>& together) {
  const DeviceGuard guard(device.index());
  const cudaStream_t cuda = cuda_stream(stream);
  const Tensor in = tensor_of_call(device, call, call.in_shape, storage, "in");
  const Tensor out = tensor_of_call(device, call, call.out_shape, storage, "out");
  device.fill_bytes(in.view().data, 0, static_cast<std::size_t>(in.view().bytes()), stream);
  const int first = storage == Storage::kAxisFirst ? call.dim : 0;  // stored in front
  const TensorView to = out.view().transposed(0, first);
  const TensorView from = in.view().transposed(0, first);
  const auto launch_all = [&] {
    for (int i = 0; i < kLaunches; ++i) make_call(collective, call, to, from, stream);
  };
  launch_all();
  collective.synchronize(stream);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  launch_all();
  check_cuda(cudaStreamEndCapture(cuda, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");

  Stopwatch stopwatch;
  std::vector<double> single;
  std::vector<double> in_graph;
  for (int replay = 0; replay < kReplays; ++replay) {
    together.arrive_and_wait();
    single.push_back(stopwatch.time_us(cuda, launch_all) / kLaunches);
    together.arrive_and_wait();
    in_graph.push_back(stopwatch.time_us(cuda, [&] {
      check_cuda(cudaGraphLaunch(executable, cuda), "cudaGraphLaunch");
    }) / kLaunches);
  }
  collective.synchronize(stream);
  check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return {median(single), median(in_graph)};
}

void print_row(const StepCall& step, Storage storage, std::int64_t requests, int gpus,
               const Times& times) {
  const auto bytes = static_cast<double>(algorithm_bytes(step.call));
  const std::string label =
      std::string(step.label) + (storage == Storage::kRowMajor ? ", tokens first" : "");
  std::printf("%-36s %5d %12.0f %10.1f %10.1f %10.1f %10.1f\n", label.c_str(),
              static_cast<int>(requests), bytes, times.single_us, times.graph_us,
              bytes / times.graph_us / 1e3,
              static_cast<double>(wire_bytes(step.call, gpus)) / times.graph_us / 1e3);
  std::fflush(stdout);
}

void run(int gpus) {
  std::vector<std::unique_ptr<CudaDevice>> devices;
  std::vector<CudaDevice*> pointers;
  std::vector<Stream> streams;
  for (int index = 0; index < gpus; ++index) {
    devices.push_back(std::make_unique<CudaDevice>(index));
    pointers.push_back(devices.back().get());
    streams.push_back(devices.back()->create_stream());
  }
  std::printf("%d x %s, %d heads a rank, median of %d times the mean of %d calls\n", gpus,
              devices[0]->properties().name.c_str(), static_cast<int>(kHeads), kReplays, kLaunches);
  std::printf("%-36s %5s %12s %10s %10s %10s %10s\n", "collective", "B", "bytes", "single us",
              "graph us", "algbw GB/s", "busbw GB/s");
  {
    NcclGroup group(pointers);
    std::barrier<> together(gpus);
    for (const std::int64_t requests : {1, 16, 64, 128, 512}) {
      for (const StepCall& step : decode_step_calls(requests, kHeads, gpus)) {
        for (const Storage storage : {Storage::kAxisFirst, Storage::kRowMajor}) {
          if (storage == Storage::kRowMajor && step.call.dim == 0) continue;  // the same
          Times times;
          group.run([&](Collective& collective) {
            const int r = collective.rank();
            const Times mine =
                time_call(step.call, storage, collective, *devices[r], streams[r], together);
            if (r == 0) times = mine;
          });
          print_row(step, storage, requests, gpus, times);
        }
      }
    }
  }
  for (int r = 0; r < gpus; ++r) devices[r]->destroy_stream(streams[r]);
}

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "usage: %s [GPUs, 2 unless given]\n", argv[0]);
    return 2;
  }
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  try {
    mladcp::run(argc == 2 ? std::max(1, std::atoi(argv[1])) : 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}
