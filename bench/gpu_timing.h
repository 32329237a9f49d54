// Timing on the card for the GPU benchmarks: launches captured in one graph, timed between two
// events.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_device.h"
#include "kernels/device/cuda_graph.h"

namespace mladcp {

// One card, one stream, tensors of data that is not constant.
class BenchDevice {
 public:
  explicit BenchDevice(int index = 0);
  ~BenchDevice();
  BenchDevice(const BenchDevice&) = delete;
  BenchDevice& operator=(const BenchDevice&) = delete;

  CudaDevice& device() { return device_; }
  Stream stream() const { return stream_; }

  // A tensor of pseudo-random bytes: bf16 and e4m3 values of moderate size, no NaN.
  Tensor random(DType dtype, const Shape& shape, const char* name);
  template <typename Integer>
  Tensor indices(const std::vector<Integer>& values, const char* name) {
    Tensor tensor(device_, sizeof(Integer) == 8 ? DType::kI64 : DType::kI32,
                  {static_cast<std::int64_t>(values.size())}, name);
    device_.copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(Integer),
                           stream_);
    return tensor;
  }

  // Mean seconds of one of `launches` calls launch(0), launch(1), .. replayed as one graph.
  double seconds(int launches, const std::function<void(int)>& launch);

  // The same between two events on the stream, without a graph.
  double stream_seconds(int launches, const std::function<void(int)>& launch);

  // Read and write bytes per second of a device copy of 1 GiB: the faster of cudaMemcpyAsync on a
  // stream (4 between two events) and in a graph, where it may run on a copy engine. Measured once.
  double copy_bytes_per_second();

 private:
  double median_seconds(const std::function<void()>& enqueue);

  CudaDevice device_;
  Stream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  Tensor pattern_bf16_, pattern_e4m3_;
  double copy_bytes_per_second_ = 0.0;
};

BenchDevice& bench_device();

// main() of a benchmark on bench_device(): Google Benchmark's flags; exit status 2 for others, 3
// with a message when it cannot run, for want of a card above all.
int run_gpu_benchmarks(int argc, char** argv);

}  // namespace mladcp
