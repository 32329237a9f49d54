// Warpgroups 1 and 2: O = P V, 256 dims each, and the rows of O to memory.
//
// V is the page as it lies: a 16-bit wgmma takes its second operand with the dims contiguous. O
// stays in the accumulators of the tensor core for the whole piece, in two blocks of 128 dims.
// Thread (warp w, g = lane / 4, t = lane % 4) holds rows 16w + g and 16w + 8 + g, dims 8j + 2t + b
// of a block in o[block][4j + 2h + b].
#pragma once

#include "kernels/decode/sm90_bf16/config.h"
#include "kernels/decode/sm90_common/wgmma.cuh"
#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_bf16 {

inline constexpr int kBlocks = 2;
inline constexpr int kBlockDims = kWarpgroupDims / kBlocks;
inline constexpr int kBlockTiles = kBlockDims * 2 / kTileChunk;
inline constexpr int kAccumulators = kBlockDims / 2;  // of a block

// o *= factor of its row.
__device__ __forceinline__ void rescale_rows(float (&o)[kAccumulators], std::uint32_t alpha,
                                             int row) {
  float low;
  float high;
  alpha += 4 * sm90_fp8::alpha_index(row);
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(low) : "r"(alpha) : "memory");
  asm volatile("ld.shared.f32 %0, [%1+8];" : "=f"(high) : "r"(alpha) : "memory");
#pragma unroll
  for (int j = 0; j < kAccumulators / 4; ++j) {
    o[4 * j] *= low;
    o[4 * j + 1] *= low;
    o[4 * j + 2] *= high;
    o[4 * j + 3] *= high;
  }
}

// Zeroes this warpgroup's dims of the keys at or beyond `keys`: whatever the cache holds there must
// not meet a weight of 0, because 0 * NaN is NaN.
__device__ __forceinline__ void clear_tail(std::uint32_t values, int keys, int thread) {
  constexpr int kRowChunks = kWarpgroupDims * 2 / 16;
  for (int i = keys * kRowChunks + thread; i < kPageKeys * kRowChunks; i += 128) {
    const int row = i / kRowChunks;
    const int chunk = i % kRowChunks;
    const std::uint32_t at = values + (chunk / 8) * kTileBytes + row * kTileChunk + chunk % 8 * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

// One row of the tile, half h of what a thread holds: bf16 to the output, or fp32 to a partial.
__device__ __forceinline__ void store_row(const sm90_fp8::Shared<Config>& shared,
                                          const float (&o)[kBlocks][kAccumulators], int row, int h,
                                          int dim0) {
  std::uint64_t target;
  float scale;
  asm volatile("ld.shared.u64 %0, [%1];"
               : "=l"(target)
               : "r"(shared.row_target() + 8 * row)
               : "memory");
  asm volatile("ld.shared.f32 %0, [%1];"
               : "=f"(scale)
               : "r"(shared.row_scale() + 4 * row)
               : "memory");
  if (target == 0) return;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < kAccumulators / 4; ++j) {
      const float low = o[block][4 * j + 2 * h] * scale;
      const float high = o[block][4 * j + 2 * h + 1] * scale;
      const int dim = dim0 + block * kBlockDims + 8 * j;
      if (target & 1) {
        *reinterpret_cast<float2*>(reinterpret_cast<float*>(target - 1) + dim) =
            make_float2(low, high);
      } else {
        *reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::uint16_t*>(target) + dim) =
            sm90::pack_bf16x2(low, high);
      }
    }
  }
}

// `half`: 0 or 1, which 256 dims.
__device__ __forceinline__ void accumulate_output(const sm90_fp8::Shared<Config>& shared,
                                                  int half) {
  const int thread = threadIdx.x & 127;
  const int lane = threadIdx.x & 31;
  const int row = 16 * (thread >> 5) + (lane >> 2);
  sm90_fp8::PieceCursor piece_at;
  sm90_fp8::SingleCursor sums_at;
  sm90_fp8::RingCursor<Config::kStages> page_at;
  sm90_fp8::CountingCursor<Config::kProbSlotBits> prob_at;
  sm90_fp8::Piece piece;
  while (sm90_fp8::next_piece(shared, piece_at, piece)) {
    float o[kBlocks][kAccumulators];
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) o[0][i] = o[1][i] = 0.0F;
    for (int i = 0; i < piece.num_pages; ++i) {
      const std::uint32_t values =
          shared.stage(page_at.slot()) + half * (kWarpgroupDims * 2 / kTileChunk) * kTileBytes;
      const int keys = piece.num_keys - i * kPageKeys;
      if (keys < kPageKeys) {
        // Waited for by this warpgroup itself, so that its stores follow those of the copy.
        sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
        clear_tail(values, keys, thread);
        sm90::fence_proxy_async();
        sm90::sync_warpgroup(1 + half);
      }
      sm90::barrier_wait(shared.prob_full(prob_at.slot()), prob_at.parity());
      if (sm90_fp8::any_rescaled(shared.rescaled(prob_at.slot()))) {
        for (auto& block : o) rescale_rows(block, shared.alpha(prob_at.slot()), row);
      }
      const std::uint64_t weights =
          sm90::matrix_descriptor(shared.prob(prob_at.slot()), sm90::Swizzle::k128Bytes);
      const std::uint64_t value = sm90::transposed_descriptor(values, kTileBytes);
      sm90::pin(o[0]);
      sm90::pin(o[1]);
      sm90::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kPageKeys / 16; ++k) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          sm90::wgmma_bf16_transposed(
              o[block], weights + 2 * k,
              value + (k * 16 * kTileChunk + block * kBlockTiles * kTileBytes) / 16);
        }
      }
      sm90::wgmma_commit();
      sm90::wgmma_wait<0>();
      sm90::pin(o[0]);
      sm90::pin(o[1]);
      __syncwarp();
      if (sm90::elect_one()) {
        sm90::barrier_arrive(shared.page_empty(page_at.slot()));
        sm90::barrier_arrive(shared.prob_empty(prob_at.slot()));
      }
      page_at.advance();
      prob_at.advance();
    }
    sm90::barrier_wait(shared.sums_full(), sums_at.parity());
    const int dim0 = half * kWarpgroupDims + 2 * (lane & 3);
    store_row(shared, o, row, 0, dim0);
    store_row(shared, o, row + 8, 1, dim0);
    sm90::barrier_arrive(shared.sums_empty());
    sums_at.advance();
  }
}

}  // namespace mladcp::sm90_bf16
