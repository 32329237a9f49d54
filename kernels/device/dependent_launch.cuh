// What kernels launched by launch_dependent() do on their side. Nothing on devices older than
// Hopper.
#pragma once

#include "kernels/device/dependent_launch.h"

namespace mladcp {

// Until all work before this kernel is complete and visible. A block of the kernel calls it before
// it touches global memory, and one does in every launch, with or without work: else the kernel
// could complete, and what follows it begin, before what it depends on.
__device__ __forceinline__ void wait_for_upstream_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks come up, once every block has called it or has ended.
__device__ __forceinline__ void allow_dependent_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mladcp
