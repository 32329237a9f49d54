// Programmatic dependent launch (Hopper): the blocks of a kernel come up while the kernel before it
// on the stream still runs, and wait there until that one is complete. Elsewhere plain launches.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/device/cuda_error.h"

namespace mladcp {

// Until all work before this kernel is complete and visible. Every block of a kernel launched by
// launch_dependent calls it before it touches global memory.
__device__ __forceinline__ void wait_for_upstream_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks come up, once every block has called it.
__device__ __forceinline__ void allow_dependent_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline bool offers_dependent_launch() {
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  return major >= 9;
}

// `name`: of the kernel, for errors. Blocks of one dimension.
template <typename... Parameters>
void launch_dependent(const char* name, void (*kernel)(Parameters...), unsigned blocks,
                      unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
                      const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = offers_dependent_launch() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace mladcp
