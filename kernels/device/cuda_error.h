// CUDA errors as exceptions that name the call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace mladcp {

[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call);

// Throws CudaError "cudaMemcpyAsync: an illegal memory access was encountered (error 700, ...)".
inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw_cuda_error(status, call);
}

// The launch just made: a refused configuration, or an earlier kernel's error that surfaces here.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

// Makes `device` current on this thread and restores the former device.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace mladcp
