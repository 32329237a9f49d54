// An upstream kernel that lets its dependents start long before it writes what they read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace mladcp {

struct LateCopy {
  void* to;
  const void* from;
  std::size_t bytes;  // a multiple of 4, as are the addresses
};

// Enqueues one kernel that allows dependent grids at once, idles for 50 us and then makes the
// copies, at most 8 (std::length_error).
void launch_late_copies(const std::vector<LateCopy>& copies, cudaStream_t stream);

}  // namespace mladcp
