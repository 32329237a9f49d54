// What kernels launched by launch_dependent() do on their side. Nothing in code for less than
// sm_90.
#pragma once

#include "kernels/device/dependent_launch.h"

namespace mladcp {

// Until all work before this kernel is complete and visible. Before it a block writes nothing, and
// reads only what was complete before the kernel ahead had itself waited, or guesses: relaxed
// loads at safe addresses, checked after the wait. One block waits in every launch, with or without
// work: else the kernel could complete, and what follows it begin, before what it depends on.
__device__ __forceinline__ void wait_for_upstream_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks come up, once every block has called it or has ended. Called before
// this kernel's own wait it leaves the next one nothing to read ahead.
__device__ __forceinline__ void allow_dependent_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mladcp
