// Shared memory of the BF16 kernel: the FP8 kernel's, whose stages hold half a page each, and a
// ring of rope tiles. Where a CTA is one of a pair, slot 0 of P and of what comes with it is its
// own tile, slot 1 its partner's.
#pragma once

#include "kernels/decode/sm90_bf16/config.h"
#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_bf16 {

template <class C>
struct Shared : sm90_fp8::Shared<C> {
  using Base = sm90_fp8::Shared<C>;
  using Base::alpha;
  using Base::barrier;
  using Base::base;
  using Base::prob_full;

  __device__ std::uint32_t rope(int slot) const {
    return base + C::kRopeOffset + slot * kTileBytes;
  }
  __device__ std::uint32_t rope_full(int slot) const { return barrier(C::kRopeBarriers + slot); }
  __device__ std::uint32_t rope_empty(int slot) const {
    return barrier(C::kRopeBarriers + C::kRopeSlots + slot);
  }

  // Factors of the rows of one warp.
  __device__ std::uint32_t record(int slot, int warp) const {
    return alpha(slot) + warp * kRecordBytes;
  }
  __device__ std::uint32_t row_scale(int slot = 0) const {
    return Base::row_scale() + slot * C::kSumsBytes;
  }
  __device__ std::uint32_t row_target(int slot = 0) const {
    return Base::row_target() + slot * C::kSumsBytes;
  }
  __device__ std::uint32_t sums_full(int slot = 0) const {
    return slot == 0 ? Base::sums_full() : barrier(C::kPartnerSums);
  }

  // What the partner is about to send, once for each page and each piece; first by init_barriers(),
  // then by whoever has seen the last of it arrive. (Not by the sender's counterpart here, which
  // may be a page ahead of it.)
  __device__ void expect_weights() const {
    sm90::barrier_arrive_expect_bytes(prob_full(1), C::kProbBytes + kScoreWarps * kRecordBytes);
  }
  __device__ void expect_sums() const {
    sm90::barrier_arrive_expect_bytes(sums_full(1), C::kSumsBytes);
  }

  __device__ void init_factors() const {
    if constexpr (C::kPair) {
      constexpr unsigned kWords = kRecordBytes / 4;
      if (threadIdx.x < C::kProbSlots * kScoreWarps * kWords) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(alpha(0) + 4 * threadIdx.x),
                     "f"(threadIdx.x % kWords < kRecordFlag / 4 ? 1.0F : 0.0F)
                     : "memory");
      }
    } else {
      Base::init_factors();
    }
  }

  __device__ void init_barriers() const {
    for (int slot = 0; slot < C::kRopeSlots; ++slot) {
      sm90::barrier_init(rope_full(slot), 1);
      sm90::barrier_init(rope_empty(slot), kScoreWarps);
    }
    Base::init_barriers();
    if constexpr (C::kPair) {
      sm90::barrier_init(prob_full(1), 1);
      sm90::barrier_init(sums_full(1), 1);
      expect_weights();
      expect_sums();
      sm90::fence_barrier_init();
    }
  }
};

template <class C>
using RopeCursor = sm90_fp8::CountingCursor<C::kRopeSlots - 1>;

struct HalfAt {
  int slot;
  std::uint32_t parity;
};

// Where the halves of the page at hand lie. `rank`: of the CTA in its pair, and the half it keeps.
template <class C>
struct HalfCursor {
  sm90_fp8::RingCursor<C::kKeptStages> kept;
  sm90_fp8::CountingCursor<1> passing;  // pairs

  __device__ __forceinline__ HalfAt kept_half() const { return {kept.slot(), kept.parity()}; }
  __device__ __forceinline__ HalfAt passing_half() const {
    return {C::kKeptStages + passing.slot(), passing.parity()};
  }
  // The passing half that was taken last.
  __device__ __forceinline__ int taken_passing_slot() const {
    return C::kKeptStages + sm90_fp8::CountingCursor<1>{passing.count - 1}.slot();
  }
  // Moves on by a page.
  __device__ __forceinline__ void take(HalfAt (&half)[kHalves], int rank) {
    half[0] = kept_half();
    if constexpr (C::kPair) {
      half[1] = passing_half();
      if (rank != 0) {
        const HalfAt first = half[1];
        half[1] = half[0];
        half[0] = first;
      }
      passing.advance();
    } else {
      kept.advance();
      half[1] = kept_half();
    }
    kept.advance();
  }
};

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
