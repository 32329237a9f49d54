// From the Stream of core/device.h to cudaStream_t.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {

// The legacy stream waits for every other stream, and ranks would wait for each other: refused.
inline cudaStream_t cuda_stream(Stream stream) {
  if (stream.handle == nullptr) {
    throw InvalidArgument("the null stream is refused on CUDA; pass Device::create_stream()'s");
  }
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace mladcp
