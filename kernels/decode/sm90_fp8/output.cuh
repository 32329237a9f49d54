// Warpgroups 1 and 2: O^T = V^T P^T, and the rows of O to memory.
//
// V^T is the register operand: ldmatrix.trans reads two bytes wide, so a register holds {key 2t:
// dims 2g, 2g+1; key 2t+1: dims 2g, 2g+1} of 8 keys, and byte permutes (e4m3) or conversions (f16)
// make the fragment of it. No transposed copy of V exists. Of an m64 tile at dims d0 = 64 mt + 16
// w, fragment row g is dim d0 + 2g and row 8 + g is dim d0 + 2g + 1; column n is tile row n of the
// query.
#pragma once

#include <type_traits>

#include "kernels/decode/sm90_common/wgmma.cuh"
#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_fp8 {

inline constexpr int kDimTiles = 4;  // m64 tiles of one warpgroup, which owns 256 of the 512 dims

// Loads the raw V bytes of keys 32 * half + 0..31 for a dim tile. `page` is where this lane's key
// (its lane number) has its 16 bytes for dim tile 0; chunk 4 + w of a row lies 64 bytes across from
// chunk w under the swizzle. Keys at or beyond `keys` become zeros: whatever the cache holds there
// must not meet a weight of 0, because 0 * NaN is NaN. Pages without such keys take the path
// without kTail, where nothing stands between the loads and the additions that hide them.
template <bool kTail>
__device__ __forceinline__ void load_values(std::uint32_t (&raw)[4], std::uint32_t page,
                                            int dim_tile, int half, int keys) {
  sm90::load_matrix_x4_trans(raw, (dim_tile & 1 ? page ^ 64 : page) +
                                      (dim_tile >> 1) * (kPageKeys * kLatentChunk) +
                                      half * (32 * kLatentChunk));
  if constexpr (kTail) {
    // Register i holds keys 8i + 2t (low half) and 8i + 2t + 1.
    const int left = keys - 32 * half - 2 * (sm90::thread_index() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * i + 1 >= left) raw[i] = 8 * i >= left ? 0 : raw[i] & 0xFFFF;
    }
  }
}

// The A fragments of a dim tile for 32 keys: one e4m3 step.
__device__ __forceinline__ void make_e4m3_fragment(std::uint32_t (&a)[4],
                                                   const std::uint32_t (&r)[4]) {
  a[0] = __byte_perm(r[0], r[1], 0x6420);
  a[1] = __byte_perm(r[0], r[1], 0x7531);
  a[2] = __byte_perm(r[2], r[3], 0x6420);
  a[3] = __byte_perm(r[2], r[3], 0x7531);
}

// Keeps the permutes in front of the wgmma batch: between its instructions they would split it.
__device__ __forceinline__ void pin_fragment(std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i]));
}

// The A fragments of a dim tile for 32 keys: two f16 steps.
__device__ __forceinline__ void make_f16_fragments(std::uint32_t (&a)[2][4],
                                                   const std::uint32_t (&r)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sm90::unpack_e4m3x4(__byte_perm(r[i], 0, 0x3120), a[i >> 1][(i & 1) * 2],
                        a[i >> 1][(i & 1) * 2 + 1]);
  }
}

// o *= alpha, column by column, one factor at a time for want of registers.
template <int kRegs>
__device__ __forceinline__ void rescale(float (&o)[kRegs], std::uint32_t alpha) {
  alpha += 4 * kAlphaStride * (sm90::thread_index() & 3);
#pragma unroll
  for (int j = 0; j < kRegs / 4; ++j) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float factor;
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(factor)
                   : "r"(alpha + 8 * j + 4 * b)
                   : "memory");
      o[4 * j + b] *= factor;
      o[4 * j + 2 + b] *= factor;
    }
  }
}

// o += product; volatile, so that the additions stay between the loads and the permutes around
// them.
template <int kRegs>
__device__ __forceinline__ void add(float (&o)[kRegs], const float (&product)[kRegs]) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) {
    asm volatile("add.f32 %0, %0, %1;" : "+f"(o[i]) : "f"(product[i]));
  }
}

// Writes this warpgroup's half of every row, bf16 or f16: 8 lanes together fill 32 bytes.
template <class C>
__device__ __forceinline__ void store_rows(const Shared<C>& shared,
                                           const float (&o)[kDimTiles][C::kRows / 2]) {
  const int thread = sm90::thread_index() - 128;
  const int dim0 = 256 * (thread >> 7) + 16 * ((thread >> 5) & 3) + 2 * ((thread & 31) >> 2);
  const int t = thread & 3;
  // Four rows at a time, so that what is read about them travels together.
  constexpr int kGroup = 4;
#pragma unroll
  for (int first = 0; first < C::kRows / 4; first += kGroup) {
    std::uint64_t target[kGroup];
    float scale[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int n = 8 * ((first + i) / 2) + 2 * t + (first + i) % 2;
      asm volatile("ld.shared.u64 %0, [%1];"
                   : "=l"(target[i])
                   : "r"(shared.row_target() + 8 * n)
                   : "memory");
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(scale[i])
                   : "r"(shared.row_scale() + 4 * n)
                   : "memory");
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (target[i] == 0) continue;
      const int at = 4 * ((first + i) / 2) + (first + i) % 2;
      const bool partial = (target[i] & 1) != 0;
      std::uint16_t* row = reinterpret_cast<std::uint16_t*>(target[i] & ~std::uint64_t{1}) + dim0;
#pragma unroll
      for (int mt = 0; mt < kDimTiles; ++mt) {
        const float low = o[mt][at] * scale[i];
        const float high = o[mt][at + 2] * scale[i];
        *reinterpret_cast<std::uint32_t*>(row + 64 * mt) =
            partial ? sm90::pack_f16x2(low, high) : sm90::pack_bf16x2(low, high);
      }
    }
  }
}

// One page with e4m3 weights: each dim tile is multiplied into a temporary and added to O in fp32.
// On entry `a` holds the fragments of the page's first dim tile, on exit those of the next page's.
template <class C, bool kTail>
__device__ __forceinline__ void accumulate_page_e4m3(float (&o)[kDimTiles][C::kRows / 2],
                                                     float (&product)[C::kRows / 2],
                                                     std::uint32_t (&a)[2][4],
                                                     const Shared<C>& shared, std::uint32_t& page,
                                                     RingCursor<C::kStages>& page_at, int prob_slot,
                                                     int keys) {
  const std::uint64_t weights =
      sm90::matrix_descriptor(shared.prob(prob_slot), sm90::Swizzle::k64Bytes);
#pragma unroll
  for (int mt = 0; mt < kDimTiles; ++mt) {
    pin_fragment(a[0]);
    pin_fragment(a[1]);
    sm90::wgmma_fence();
    sm90::wgmma_e4m3(product, a[0], weights, false);
    sm90::wgmma_e4m3(product, a[1], weights + 2, true);
    sm90::wgmma_commit();
    // In the shadow of the product, which does not touch O.
    if (mt == 0 && any_rescaled(shared.rescaled(prob_slot))) {
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) rescale(o[i], shared.alpha(prob_slot));
    }
    if (mt == kDimTiles - 1) {
      __syncwarp();
      if (sm90::elect_one()) sm90::barrier_arrive(shared.page_empty(page_at.slot()));
      page_at.advance();
      page += page_at.slot() == 0 ? kPageBytes - C::kStages * kPageBytes : kPageBytes;
      if (!kTail || keys > kPageKeys) {
        sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
      }
    }
    sm90::wgmma_wait<0>();
    sm90::pin(product);
    // The next tile's loads go first, so that their latency lies under the additions.
    std::uint32_t raw[2][4];
    const int next_tile = (mt + 1) % kDimTiles;
    const int tile_keys = mt == kDimTiles - 1 ? keys - kPageKeys : keys;
    load_values<kTail>(raw[0], page, next_tile, 0, tile_keys);
    load_values<kTail>(raw[1], page, next_tile, 1, tile_keys);
    add(o[mt], product);
    if (mt == kDimTiles - 1) {
      __syncwarp();
      if (sm90::elect_one()) sm90::barrier_arrive(shared.prob_empty(prob_slot));
    }
    make_e4m3_fragment(a[0], raw[0]);
    make_e4m3_fragment(a[1], raw[1]);
  }
}

// One page with f16 weights: dim tiles alternate between two temporaries, so that one is added to O
// while the other is multiplied into. On entry `a[0]` holds the fragments of the page's first 32
// keys and first dim tile, on exit those of the next page's.
template <class C, bool kTail>
__device__ __forceinline__ void accumulate_page_f16(float (&o)[kDimTiles][C::kRows / 2],
                                                    float (&product)[2][C::kRows / 2],
                                                    std::uint32_t (&a)[2][2][4],
                                                    const Shared<C>& shared, std::uint32_t& page,
                                                    RingCursor<C::kStages>& page_at, int prob_slot,
                                                    int keys) {
  const std::uint64_t weights =
      sm90::matrix_descriptor(shared.prob(prob_slot), sm90::Swizzle::k128Bytes);
  if (any_rescaled(shared.rescaled(prob_slot))) {
#pragma unroll
    for (int mt = 0; mt < kDimTiles; ++mt) rescale(o[mt], shared.alpha(prob_slot));
  }
#pragma unroll
  for (int x = 0; x < 2 * kDimTiles; ++x) {
    const int mt = x >> 1;
    const int half = x & 1;
    pin_fragment(a[half][0]);
    pin_fragment(a[half][1]);
    sm90::wgmma_fence();
    sm90::wgmma_f16(product[mt & 1], a[half][0], weights + 4 * half, half > 0);
    sm90::wgmma_f16(product[mt & 1], a[half][1], weights + 4 * half + 2, true);
    sm90::wgmma_commit();
    int next_tile_keys = keys;
    if (x == 2 * kDimTiles - 1) {
      page_at.advance();
      page += page_at.slot() == 0 ? kPageBytes - C::kStages * kPageBytes : kPageBytes;
      if (!kTail || keys > kPageKeys) {
        sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
      }
      next_tile_keys = keys - kPageKeys;
    }
    sm90::wgmma_wait<1>();
    if (half == 0 && mt > 0) {
      sm90::pin(product[(mt - 1) & 1]);
      add(o[mt - 1], product[(mt - 1) & 1]);
    }
    std::uint32_t raw[4];
    const int next = (x + 1) % (2 * kDimTiles);
    load_values<kTail>(raw, page, next >> 1, next & 1, next_tile_keys);
    make_f16_fragments(a[(x + 1) & 1], raw);
    if (x == 2 * kDimTiles - 2) {
      __syncwarp();
      if (sm90::elect_one()) sm90::barrier_arrive(shared.page_empty(page_at.slot()));
    }
  }
  sm90::wgmma_wait<0>();
  __syncwarp();
  if (sm90::elect_one()) sm90::barrier_arrive(shared.prob_empty(prob_slot));
  sm90::pin(product[(kDimTiles - 1) & 1]);
  add(o[kDimTiles - 1], product[(kDimTiles - 1) & 1]);
}

// The fragments of all dim tiles of a page.
template <bool kTail>
__device__ __forceinline__ void load_page_fragments(std::uint32_t (&a)[2 * kDimTiles][2][4],
                                                    std::uint32_t page, int keys) {
#pragma unroll
  for (int x = 0; x < 2 * kDimTiles; ++x) {
    std::uint32_t raw[4];
    load_values<kTail>(raw, page, x >> 1, x & 1, keys);
    make_f16_fragments(a[x], raw);
  }
}

// The same for tiles so small that registers hold the fragments of a whole page, made while its
// scores are, and a product for every dim tile: once the weights are there all products follow each
// other at once.
template <class C, bool kTail>
__device__ __forceinline__ void accumulate_page_at_once(float (&o)[kDimTiles][C::kRows / 2],
                                                        std::uint32_t (&a)[2 * kDimTiles][2][4],
                                                        const Shared<C>& shared,
                                                        std::uint32_t& page,
                                                        RingCursor<C::kStages>& page_at,
                                                        int prob_slot, int keys) {
  const std::uint64_t weights =
      sm90::matrix_descriptor(shared.prob(prob_slot), sm90::Swizzle::k128Bytes);
  if (any_rescaled(shared.rescaled(prob_slot))) {
#pragma unroll
    for (int mt = 0; mt < kDimTiles; ++mt) rescale(o[mt], shared.alpha(prob_slot));
  }
#pragma unroll
  for (int x = 0; x < 2 * kDimTiles; ++x) {
    pin_fragment(a[x][0]);
    pin_fragment(a[x][1]);
  }
  float product[kDimTiles][C::kRows / 2];
  sm90::wgmma_fence();
#pragma unroll
  for (int x = 0; x < 2 * kDimTiles; ++x) {
    const int mt = x >> 1;
    const int half = x & 1;
    sm90::wgmma_f16(product[mt], a[x][0], weights + 4 * half, half > 0);
    sm90::wgmma_f16(product[mt], a[x][1], weights + 4 * half + 2, true);
  }
  sm90::wgmma_commit();
  __syncwarp();
  if (sm90::elect_one()) sm90::barrier_arrive(shared.page_empty(page_at.slot()));
  sm90::wgmma_wait<0>();
  __syncwarp();
  if (sm90::elect_one()) sm90::barrier_arrive(shared.prob_empty(prob_slot));
#pragma unroll
  for (int mt = 0; mt < kDimTiles; ++mt) {
    sm90::pin(product[mt]);
    add(o[mt], product[mt]);
  }
  page_at.advance();
  page += page_at.slot() == 0 ? kPageBytes - C::kStages * kPageBytes : kPageBytes;
  if (kTail && keys <= kPageKeys) return;
  sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
  load_page_fragments<kTail>(a, page, keys - kPageKeys);
}

template <class C>
__device__ __forceinline__ void accumulate_output(const Shared<C>& shared, int half) {
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, (threadIdx.x >> 5) & 3, 0);
  std::uint32_t page =
      shared.stage(0) + half * (2 * kPageKeys * kLatentChunk) + swizzled_128(lane, warp);

  PieceCursor piece_at;
  SingleCursor sums_at;
  CountingCursor<1> prob_at;
  RingCursor<C::kStages> page_at;
  Piece piece;
  while (next_piece(shared, piece_at, piece)) {
    float o[kDimTiles][C::kRows / 2];
#pragma unroll
    for (int mt = 0; mt < kDimTiles; ++mt) {
#pragma unroll
      for (int i = 0; i < C::kRows / 2; ++i) o[mt][i] = 0.0F;
    }
    if (piece.num_pages > 0) {
      sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
      // Keys left in the piece; the last page may be partly filled.
      int keys = min(piece.num_keys, piece.num_pages * kPageKeys);
      const auto walk = [&](const auto& accumulate_page) {
        const auto accumulate = [&](auto tail) {
          const int slot = prob_at.slot();
          sm90::barrier_wait(shared.prob_full(slot), prob_at.parity());
          accumulate_page(tail, slot);
          prob_at.advance();
        };
        for (; keys >= 2 * kPageKeys; keys -= kPageKeys) accumulate(std::false_type{});
        for (; keys > 0; keys -= kPageKeys) accumulate(std::true_type{});
      };
      if constexpr (C::kPageAtOnce) {
        std::uint32_t a[2 * kDimTiles][2][4];
        load_page_fragments<true>(a, page, keys);
        walk([&](auto tail, int slot) {
          accumulate_page_at_once<C, tail.value>(o, a, shared, page, page_at, slot, keys);
        });
      } else if constexpr (C::kPvF16) {
        std::uint32_t raw[4];
        std::uint32_t a[2][2][4];
        float product[2][C::kRows / 2] = {};
        load_values<true>(raw, page, 0, 0, keys);
        make_f16_fragments(a[0], raw);
        walk([&](auto tail, int slot) {
          accumulate_page_f16<C, tail.value>(o, product, a, shared, page, page_at, slot, keys);
        });
      } else {
        std::uint32_t raw[4];
        std::uint32_t a[2][4];
        float product[C::kRows / 2];
#pragma unroll
        for (int i = 0; i < C::kRows / 2; ++i) product[i] = 0.0F;
        load_values<true>(raw, page, 0, 0, keys);
        make_e4m3_fragment(a[0], raw);
        load_values<true>(raw, page, 0, 1, keys);
        make_e4m3_fragment(a[1], raw);
        walk([&](auto tail, int slot) {
          accumulate_page_e4m3<C, tail.value>(o, product, a, shared, page, page_at, slot, keys);
        });
      }
    }
    sm90::barrier_wait(shared.sums_full(), sums_at.parity());
    store_rows<C>(shared, o);
    sm90::barrier_arrive(shared.sums_empty());
    sums_at.advance();
  }
}

}  // namespace mladcp::sm90_fp8
