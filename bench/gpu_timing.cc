#include "bench/gpu_timing.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>

#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

constexpr std::int64_t kPatternBytes = std::int64_t{64} << 20;
constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;

}  // namespace

BenchDevice::BenchDevice(int index) : device_(index), stream_(device_.create_stream()) {
  const DeviceGuard guard(index);
  check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  std::mt19937 generator(1);
  const auto engine = [&generator] { return static_cast<std::uint32_t>(generator()); };
  std::vector<std::uint32_t> words(kPatternBytes / 4);
  // Exponents near 1 in both formats: bf16 0x3F00..0x40FF, e4m3 0x28..0x47, either sign.
  for (std::uint32_t& word : words) {
    const std::uint32_t x = engine();
    word = (x & 0x80FF80FFU) | 0x3F003F00U | ((x >> 1) & 0x00800080U);
  }
  const auto bytes = static_cast<std::size_t>(kPatternBytes);
  pattern_bf16_ = Tensor(device_, DType::kBytes, {kPatternBytes}, "pattern");
  device_.copy_from_host(pattern_bf16_.view().data, words.data(), bytes, stream_);
  for (std::uint32_t& word : words) {
    const std::uint32_t x = engine();
    word = (x & 0x8F8F8F8FU) | 0x30303030U;
  }
  pattern_e4m3_ = Tensor(device_, DType::kBytes, {kPatternBytes}, "pattern");
  device_.copy_from_host(pattern_e4m3_.view().data, words.data(), bytes, stream_);
}

BenchDevice::~BenchDevice() {
  static_cast<void>(cudaEventDestroy(begin_));
  static_cast<void>(cudaEventDestroy(end_));
  device_.destroy_stream(stream_);
}

Tensor BenchDevice::random(DType dtype, const Shape& shape, const char* name) {
  Tensor tensor(device_, dtype, shape, name);
  const Tensor& pattern = dtype == DType::kE4M3 ? pattern_e4m3_ : pattern_bf16_;
  auto* to = tensor.as<unsigned char>();
  for (std::int64_t left = tensor.view().bytes(); left > 0;) {
    const std::int64_t count = std::min(left, kPatternBytes);
    device_.copy(to, pattern.view().data, static_cast<std::size_t>(count), stream_);
    to += count;
    left -= count;
  }
  return tensor;
}

double BenchDevice::seconds(int launches, const std::function<void(int)>& launch) {
  launch(0);  // kernels are loaded before the capture
  device_.synchronize(stream_);
  const Stream streams[] = {stream_};
  const CudaGraph graph(device_, streams, [&] {
    for (int i = 0; i < launches; ++i) launch(i);
  });
  graph.launch(stream_);
  return median_seconds([&] { graph.launch(stream_); }) / launches;
}

double BenchDevice::stream_seconds(int launches, const std::function<void(int)>& launch) {
  launch(0);
  return median_seconds([&] {
           for (int i = 0; i < launches; ++i) launch(i);
         }) /
         launches;
}

double BenchDevice::median_seconds(const std::function<void()>& enqueue) {
  std::vector<float> milliseconds;
  for (int replay = 0; replay < 5; ++replay) {
    check_cuda(cudaEventRecord(begin_, cuda_stream(stream_)), "cudaEventRecord");
    enqueue();
    check_cuda(cudaEventRecord(end_, cuda_stream(stream_)), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    milliseconds.push_back(0.0F);
    check_cuda(cudaEventElapsedTime(&milliseconds.back(), begin_, end_), "cudaEventElapsedTime");
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + 2, milliseconds.end());
  return milliseconds[2] * 1e-3;
}

double BenchDevice::copy_bytes_per_second() {
  if (copy_bytes_per_second_ == 0.0) {
    const Tensor from = random(DType::kBytes, {kCopyBytes}, "from");
    const Tensor to(device_, DType::kBytes, {kCopyBytes}, "to");
    const auto copy = [&](int) {
      device_.copy(to.view().data, from.view().data, static_cast<std::size_t>(kCopyBytes), stream_);
    };
    const double time = std::min(seconds(4, copy), stream_seconds(4, copy));
    copy_bytes_per_second_ = 2.0 * kCopyBytes / time;
  }
  return copy_bytes_per_second_;
}

BenchDevice& bench_device() {
  static BenchDevice& device = *new BenchDevice;
  return device;
}

int run_gpu_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    benchmark::AddCustomContext("card", bench_device().device().properties().name);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  benchmark::Shutdown();
  return 0;
}

}  // namespace mladcp
