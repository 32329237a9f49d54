#include <cstdint>
#include <stdexcept>

#include "kernels/device/cuda_error.h"
#include "kernels/device/dependent_launch.cuh"
#include "tests/kernels/late_copies.h"

namespace mladcp {
namespace {

constexpr std::size_t kMostCopies = 8;
constexpr unsigned long long kIdleNs = 50'000;

struct Copies {
  LateCopy copy[kMostCopies];
  std::size_t count;
};

__device__ unsigned long long now_ns() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__global__ void late_copies_kernel(Copies copies) {
  allow_dependent_grid();
  const unsigned long long start = now_ns();
  while (now_ns() - start < kIdleNs) __nanosleep(1000);
  for (std::size_t i = 0; i < copies.count; ++i) {
    const LateCopy& c = copies.copy[i];
    for (std::size_t word = threadIdx.x; word < c.bytes / 4; word += blockDim.x) {
      static_cast<std::uint32_t*>(c.to)[word] = static_cast<const std::uint32_t*>(c.from)[word];
    }
  }
}

}  // namespace

void launch_late_copies(const std::vector<LateCopy>& copies, cudaStream_t stream) {
  Copies argument{};
  if (copies.size() > kMostCopies) throw std::length_error("launch_late_copies: too many copies");
  for (const LateCopy& copy : copies) argument.copy[argument.count++] = copy;
  late_copies_kernel<<<1, 256, 0, stream>>>(argument);
  check_launch("late_copies");
}

}  // namespace mladcp
