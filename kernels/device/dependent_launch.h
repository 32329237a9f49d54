// Launches of kernels that overlap with the end of what precedes them; the kernels' side is in
// dependent_launch.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/cuda_error.h"

namespace mladcp {

// Enqueues `kernel` as a programmatic dependent: it may start once every CTA of the kernel before
// it on the stream has called griddepcontrol.launch_dependents or has ended, and reads what that
// wrote only after its own griddepcontrol.wait. An ordinary launch where the kernel's code was
// compiled for less than sm_90 and holds no wait, whatever the card: old cards, and new ones that
// run the PTX of old ones. `config` says all but attributes. Throws CudaError that names `what`.
template <class... Parameters, class... Arguments>
void launch_dependent(const char* what, cudaLaunchConfig_t config, void (*kernel)(Parameters...),
                      const Arguments&... arguments) {
  cudaFuncAttributes code{};
  check_cuda(cudaFuncGetAttributes(&code, kernel), what);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

// The same on a grid of one dimension.
template <class... Parameters, class... Arguments>
void launch_dependent(const char* what, void (*kernel)(Parameters...), unsigned blocks,
                      unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
                      const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  launch_dependent(what, config, kernel, arguments...);
}

}  // namespace mladcp
