// Shared memory of the BF16 kernel: the FP8 kernel's, whose stages hold half a page each, and a
// ring of rope tiles.
#pragma once

#include "kernels/decode/sm90_bf16/config.h"
#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_bf16 {

struct Shared : sm90_fp8::Shared<Config> {
  __device__ std::uint32_t rope(int slot) const {
    return base + Config::kRopeOffset + slot * kTileBytes;
  }
  __device__ std::uint32_t rope_full(int slot) const {
    return barrier(Config::kRopeBarriers + slot);
  }
  __device__ std::uint32_t rope_empty(int slot) const {
    return barrier(Config::kRopeBarriers + kRopeSlots + slot);
  }

  __device__ void init_barriers() const {
    for (int slot = 0; slot < kRopeSlots; ++slot) {
      sm90::barrier_init(rope_full(slot), 1);
      sm90::barrier_init(rope_empty(slot), 4);  // the warps that computed S
    }
    sm90_fp8::Shared<Config>::init_barriers();
  }
};

using HalfCursor = sm90_fp8::RingCursor<Config::kStages>;
using RopeCursor = sm90_fp8::CountingCursor<1>;
static_assert(kRopeSlots == 2);

// Word i of lane t of four neighbours becomes word t of lane i.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4], int t) {
  const auto trade = [](std::uint32_t& low, std::uint32_t& high, bool upper, int lanes) {
    const std::uint32_t theirs = __shfl_xor_sync(~0U, upper ? low : high, lanes);
    (upper ? low : high) = theirs;
  };
  trade(w[0], w[1], (t & 1) != 0, 1);
  trade(w[2], w[3], (t & 1) != 0, 1);
  trade(w[0], w[2], (t & 2) != 0, 2);
  trade(w[1], w[3], (t & 2) != 0, 2);
}

}  // namespace mladcp::sm90_bf16
