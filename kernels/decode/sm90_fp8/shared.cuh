// Where the roles of a CTA meet: addresses of buffers and barriers, and the walk over pieces.
#pragma once

#include "kernels/decode/sm90_common/ptx.cuh"
#include "kernels/decode/sm90_fp8/config.h"

namespace mladcp::sm90_fp8 {

// 16-byte chunk `chunk` of row `row` in a swizzled tile whose rows are 128 or 64 bytes.
__device__ __forceinline__ constexpr int swizzled_128(int row, int chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}
__device__ __forceinline__ constexpr int swizzled_64(int row, int chunk) {
  return row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4);
}

// All addresses are shared-window addresses.
template <class C>
struct Shared {
  std::uint32_t base;

  __device__ std::uint32_t stage(int s) const { return base + s * C::kStageBytes; }
  __device__ std::uint32_t query() const { return base + C::kQueryOffset; }
  __device__ std::uint32_t prob(int slot) const {
    return base + C::kProbOffset + slot * C::kProbBytes;
  }
  __device__ std::uint32_t rescaled(int slot) const {
    return base + C::kRescaledOffset + slot * 16;
  }
  __device__ std::uint32_t alpha(int slot) const {
    return base + C::kAlphaOffset + slot * 4 * kAlphaStride * 4;
  }
  __device__ std::uint32_t row_scale() const { return base + C::kRowScaleOffset; }
  __device__ std::uint32_t row_target() const { return base + C::kRowTargetOffset; }
  __device__ std::uint32_t piece(int slot) const { return base + C::kPieceOffset + slot * 32; }

  __device__ std::uint32_t barrier(int i) const { return base + C::kBarrierOffset + i * 8; }
  __device__ std::uint32_t page_full(int s) const { return barrier(s); }
  __device__ std::uint32_t page_empty(int s) const { return barrier(C::kStages + s); }
  __device__ std::uint32_t prob_full(int s) const { return barrier(2 * C::kStages + s); }
  __device__ std::uint32_t prob_empty(int s) const { return barrier(2 * C::kStages + 2 + s); }
  __device__ std::uint32_t query_full() const { return barrier(2 * C::kStages + 4); }
  __device__ std::uint32_t query_empty() const { return barrier(2 * C::kStages + 5); }
  __device__ std::uint32_t sums_full() const { return barrier(2 * C::kStages + 6); }
  __device__ std::uint32_t sums_empty() const { return barrier(2 * C::kStages + 7); }
  __device__ std::uint32_t piece_full(int s) const { return barrier(2 * C::kStages + 8 + s); }
  __device__ std::uint32_t piece_empty(int s) const {
    return barrier(2 * C::kStages + 8 + kPieceSlots + s);
  }

  // The rescale flags, then factors of 1; threads 0 .. 511.
  __device__ void init_factors() const {
    constexpr unsigned kFlagWords = (C::kAlphaOffset - C::kRescaledOffset) / 4;
    constexpr unsigned kFactorWords = (C::kRowScaleOffset - C::kAlphaOffset) / 4;
    if (threadIdx.x < kFlagWords + kFactorWords) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(rescaled(0) + 4 * threadIdx.x),
                   "f"(threadIdx.x < kFlagWords ? 0.0F : 1.0F)
                   : "memory");
    }
  }

  // Once a page one lane arrives for its warp. Once a piece every lane does, for what it touched
  // itself: compute-sanitizer does not see a warp's convergence, and an arrival costs little there.
  __device__ void init_barriers() const {
    using sm90::barrier_init;
    for (int s = 0; s < C::kStages; ++s) {
      barrier_init(page_full(s), 1);
      barrier_init(page_empty(s), C::stage_readers(s));
    }
    for (int s = 0; s < 2; ++s) {
      barrier_init(prob_full(s), C::kSoftmaxWarps);
      barrier_init(prob_empty(s), kPvWarps);
    }
    barrier_init(query_full(), kQueryWarps * 32);
    barrier_init(query_empty(), 4 * 32);
    barrier_init(sums_full(), C::kSoftmaxWarps * 32);
    barrier_init(sums_empty(), kPvWarps * 32);
    for (int s = 0; s < kPieceSlots; ++s) {
      barrier_init(piece_full(s), 1);
      barrier_init(piece_empty(s), (kQueryWarps + 4 + kPvWarps) * 32);
    }
    sm90::fence_barrier_init();
  }
};

// A position in a ring of kSlots buffers and the parity of its current round.
template <int kSlots>
struct RingCursor {
  int at = 0;
  std::uint32_t round = 0;
  __device__ __forceinline__ int slot() const { return at; }
  __device__ __forceinline__ std::uint32_t parity() const { return round; }
  __device__ __forceinline__ void advance() {
    if (++at == kSlots) {
      at = 0;
      round ^= 1;
    }
  }
};

// The same for 2^kBits buffers: one counter, because registers are short.
template <int kBits>
struct CountingCursor {
  std::uint32_t count = 0;
  __device__ __forceinline__ int slot() const { return count & ((1U << kBits) - 1); }
  __device__ __forceinline__ std::uint32_t parity() const { return (count >> kBits) & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};
using PieceCursor = CountingCursor<2>;
using SingleCursor = CountingCursor<0>;
static_assert(kPieceSlots == 4);

// Reads the next piece; every lane of a consuming warp calls it. False after the last one.
template <class C, class Cursor>
__device__ __forceinline__ bool next_piece(const Shared<C>& shared, Cursor&& at, Piece& piece) {
  sm90::barrier_wait(shared.piece_full(at.slot()), at.parity());
  const std::uint32_t address = shared.piece(at.slot());
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.num_pages), "=r"(piece.num_keys), "=r"(piece.first_key),
                 "=r"(piece.row_begin)
               : "r"(address)
               : "memory");
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];"
               : "=r"(piece.num_rows), "=r"(piece.split)
               : "r"(address + 16)
               : "memory");
  sm90::barrier_arrive(shared.piece_empty(at.slot()));
  at.advance();
  return piece.num_pages >= 0;
}

// Where the factor of tile row n lies, so that a PV thread reads its 2 heads of each 8 as vectors.
__device__ __forceinline__ int alpha_index(int n) {
  return ((n & 7) >> 1) * kAlphaStride + 2 * (n >> 3) + (n & 1);
}

// Whether any warp moved a reference: `flags` is Shared::rescaled of a slot.
__device__ __forceinline__ bool any_rescaled(std::uint32_t flags) {
  int f[4];
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(flags)
               : "memory");
  // The same in all lanes; the vote lets the compiler know, and keep its state in uniform
  // registers.
  return __any_sync(~0U, (f[0] | f[1] | f[2] | f[3]) != 0);
}

}  // namespace mladcp::sm90_fp8
