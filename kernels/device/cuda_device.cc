#include "kernels/device/cuda_device.h"

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/movement/rank_sum.h"
#include "kernels/movement/strided_copy.h"

namespace mladcp {
namespace {

constexpr int kOldestComputeCapability = 80;

cudaEvent_t to_cuda(Event event) { return static_cast<cudaEvent_t>(event.handle); }

std::string gibibytes(std::size_t bytes) {
  return std::to_string(bytes / (std::size_t{1} << 30)) + " GiB";
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // no driver, no card: an answer, not an error
  return 0;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

CudaProperties read_properties(int index) {
  cudaDeviceProp prop = {};
  check_cuda(cudaGetDeviceProperties(&prop, index), "cudaGetDeviceProperties");
  return {prop.name,
          prop.major * 10 + prop.minor,
          prop.multiProcessorCount,
          prop.l2CacheSize,
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
          prop.totalGlobalMem};
}

std::string describe_card(int index, const CudaProperties& card) {
  return "cuda:" + std::to_string(index) + " " + card.name + ", sm_" +
         std::to_string(card.compute_capability) + ", " + std::to_string(card.multiprocessors) +
         " SMs, " + gibibytes(card.memory_bytes);
}

}  // namespace

CudaDevice::CudaDevice(int index) : index_(index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Unsupported("device cuda:" + std::to_string(index) +
                      " does not exist: " + std::to_string(count) +
                      " CUDA devices are visible; use --device cpu, or "
                      "check the driver and CUDA_VISIBLE_DEVICES");
  }
  properties_ = read_properties(index);
  description_ = "cuda:" + std::to_string(index) + " " + properties_.name;
  if (properties_.compute_capability < kOldestComputeCapability) {
    throw Unsupported(describe_card(index, properties_) + ": the kernels need sm_" +
                      std::to_string(kOldestComputeCapability) + " or newer");
  }
}

void* CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceGuard guard(index_);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    expect_free_memory(*this, bytes, "an allocation");
  }
  check_cuda(status, "cudaMalloc");
  return pointer;
}

void CudaDevice::deallocate(void* pointer) noexcept { static_cast<void>(cudaFree(pointer)); }

Stream CudaDevice::create_stream() {
  const DeviceGuard guard(index_);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  return {stream};
}

void CudaDevice::destroy_stream(Stream stream) noexcept {
  if (stream.handle != nullptr) {
    static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream.handle)));
  }
}

void CudaDevice::synchronize(Stream stream) {
  check_cuda(cudaStreamSynchronize(cuda_stream(stream)), "cudaStreamSynchronize");
}

Event CudaDevice::create_event() {
  const DeviceGuard guard(index_);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return {event};
}

void CudaDevice::destroy_event(Event event) noexcept {
  if (event.handle != nullptr) static_cast<void>(cudaEventDestroy(to_cuda(event)));
}

void CudaDevice::record(Event event, Stream stream) {
  const DeviceGuard guard(index_);
  check_cuda(cudaEventRecord(to_cuda(event), cuda_stream(stream)), "cudaEventRecord");
}

void CudaDevice::wait(Stream stream, Event event) {
  const DeviceGuard guard(index_);
  check_cuda(cudaStreamWaitEvent(cuda_stream(stream), to_cuda(event), 0), "cudaStreamWaitEvent");
}

void CudaDevice::copy(void* destination, const void* source, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(index_);
  check_cuda(
      cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, cuda_stream(stream)),
      "cudaMemcpyAsync (device to device)");
}

void CudaDevice::copy_from_host(void* destination, const void* source, std::size_t bytes,
                                Stream stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(index_);
  check_cuda(
      cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, cuda_stream(stream)),
      "cudaMemcpyAsync (host to device)");
  synchronize(stream);
}

void CudaDevice::copy_to_host(void* destination, const void* source, std::size_t bytes,
                              Stream stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(index_);
  check_cuda(
      cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, cuda_stream(stream)),
      "cudaMemcpyAsync (device to host)");
  synchronize(stream);
}

void CudaDevice::fill_bytes(void* destination, unsigned char value, std::size_t bytes,
                            Stream stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(index_);
  check_cuda(cudaMemsetAsync(destination, value, bytes, cuda_stream(stream)), "cudaMemsetAsync");
}

void CudaDevice::copy_strided(const TensorView& destination, const TensorView& source,
                              Stream stream) {
  const DeviceGuard guard(index_);
  launch_strided_copy(destination, source, stream);
}

void CudaDevice::sum_in_rank_order(const TensorView& out, std::span<const TensorView> inputs,
                                   Stream stream) {
  const DeviceGuard guard(index_);
  launch_rank_sum(out, inputs, stream);
}

std::vector<std::string> available_cuda_devices() {
  std::vector<std::string> lines;
  for (int index = 0; index < device_count(); ++index) {
    lines.push_back(describe_card(index, read_properties(index)));
  }
  return lines;
}

void expect_free_memory(const CudaDevice& device, std::size_t bytes, std::string_view purpose) {
  const DeviceGuard guard(device.index());
  std::size_t free = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (bytes <= free) return;
  throw CudaError(std::string(device.description()) + ": no memory for " + std::string(purpose) +
                  " of " + std::to_string(bytes) + " bytes: " + std::to_string(free) + " of " +
                  std::to_string(total) +
                  " are free; use fewer requests, shorter contexts or fewer "
                  "ranks per card");
}

}  // namespace mladcp
