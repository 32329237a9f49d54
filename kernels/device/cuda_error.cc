#include "kernels/device/cuda_error.h"

namespace mladcp {

void throw_cuda_error(cudaError_t status, const char* call) {
  throw CudaError(std::string(call) + ": " + cudaGetErrorString(status) + " (error " +
                  std::to_string(static_cast<int>(status)) + ", " + cudaGetErrorName(status) + ")");
}

DeviceGuard::DeviceGuard(int device) {
  check_cuda(cudaGetDevice(&former_), "cudaGetDevice");
  if (former_ == device) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) static_cast<void>(cudaSetDevice(former_));
}

}  // namespace mladcp
