// Warpgroups 1 and 2: O = P V, 256 dims each, and the rows of O to memory.
//
// V is the page as it lies: a 16-bit wgmma takes its second operand with the dims contiguous. O
// stays in the accumulators of the tensor core for the whole piece, in two blocks of 128 dims, one
// for each half of a page, which is let go as soon as its block is done.
// Thread (warp w, g = lane / 4, t = lane % 4) holds rows 16w + g and 16w + 8 + g, dims 8j + 2t + b
// of a block in o[block][4j + 2h + b].
#pragma once

#include "kernels/decode/sm90_bf16/shared.cuh"
#include "kernels/decode/sm90_common/wgmma.cuh"

namespace mladcp::sm90_bf16 {

inline constexpr int kBlocks = 2;
inline constexpr int kBlockDims = kWarpgroupDims / kBlocks;
inline constexpr int kBlockTiles = kBlockDims * 2 / kTileChunk;
inline constexpr int kAccumulators = kBlockDims / 2;  // of a block

// Of two neighbouring lanes of a row the even one gets the four dims of (a0, a1), the odd one those
// of (b0, b1).
__device__ __forceinline__ float4 pair_up(float a0, float a1, float b0, float b1, int t) {
  const bool odd = (t & 1) != 0;
  const float low = __shfl_xor_sync(~0U, odd ? a0 : b0, 1);
  const float high = __shfl_xor_sync(~0U, odd ? a1 : b1, 1);
  return odd ? make_float4(low, high, b0, b1) : make_float4(a0, a1, low, high);
}

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

// Zeroes this warpgroup's dims of a half for the keys at or beyond `keys`: whatever the cache holds
// there must not meet a weight of 0, because 0 * NaN is NaN.
__device__ __forceinline__ void clear_tail(std::uint32_t values, int keys, int thread) {
  constexpr int kRowChunks = kBlockDims * 2 / 16;
  for (int i = keys * kRowChunks + thread; i < kPageKeys * kRowChunks; i += 128) {
    const int row = i / kRowChunks;
    const int chunk = i % kRowChunks;
    const std::uint32_t at = values + (chunk / 8) * kTileBytes + row * kTileChunk + chunk % 8 * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

// Rows n and n + 8 of the tile for half h = 0, 1 of what a thread holds: bf16 to the output, or
// fp32 to a partial, of this warpgroup's dims from dim0 on. Lanes of a row trade dims first, so
// that each stores 16 bytes at a time.
__device__ __forceinline__ void store_rows(const Shared& shared, float (&o)[kBlocks][kAccumulators],
                                           bool partial, int n, int t, int dim0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    std::uint64_t target;
    float scale;
    asm volatile("ld.shared.u64 %0, [%1];"
                 : "=l"(target)
                 : "r"(shared.row_target() + 8 * (n + 8 * h))
                 : "memory");
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(scale)
                 : "r"(shared.row_scale() + 4 * (n + 8 * h))
                 : "memory");
    const auto value = [&](int block, int j, int b) { return o[block][4 * j + 2 * h + b] * scale; };
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int dim = dim0 + block * kBlockDims;
      if (partial) {
        float* row = reinterpret_cast<float*>(target - 1) + dim;
#pragma unroll
        for (int j = 0; j < kAccumulators / 4; j += 2) {
          sm90::pin_from<8>(o[block] + 4 * j);  // one group after the other, for want of registers
          const float4 v = pair_up(value(block, j, 0), value(block, j, 1), value(block, j + 1, 0),
                                   value(block, j + 1, 1), t);
          if (target != 0) *reinterpret_cast<float4*>(row + 8 * (j + (t & 1)) + 2 * (t & 2)) = v;
        }
      } else {
        std::uint16_t* row = reinterpret_cast<std::uint16_t*>(target) + dim;
#pragma unroll
        for (int j = 0; j < kAccumulators / 4; j += 4) {
          sm90::pin_from<16>(o[block] + 4 * j);
          std::uint32_t w[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            w[i] = sm90::pack_bf16x2(value(block, j + i, 0), value(block, j + i, 1));
          }
          transpose_quad(w, t);
          std::uint16_t* to = row + 8 * (j + t);
          if (target % 16 != 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = w[i];
          } else if (target != 0) {
            *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
          }
        }
      }
    }
  }
}

// A block of O += P V for the tiles at `values`.
template <int kBegin, int kEnd>
__device__ __forceinline__ void issue_block(float (&o)[kAccumulators], std::uint64_t weights,
                                            std::uint32_t values) {
  const std::uint64_t value = sm90::transposed_descriptor(values, kTileBytes);
#pragma unroll
  for (int k = kBegin; k < kEnd; ++k) {
    sm90::wgmma_bf16_transposed(o, weights + 2 * k, value + k * (16 * kTileChunk / 16));
  }
}

// `group`: 0 or 1, which 256 dims.
__device__ __forceinline__ void accumulate_output(const Shared& shared, int group) {
  const int thread = threadIdx.x & 127;
  const int lane = threadIdx.x & 31;
  const int row = 16 * (thread >> 5) + (lane >> 2);
  const std::uint32_t tiles = group * kBlockTiles * kTileBytes;  // inside a half
  sm90_fp8::PieceCursor piece_at;
  sm90_fp8::SingleCursor sums_at;
  HalfCursor half_at;
  sm90_fp8::SingleCursor prob_at;
  sm90_fp8::Piece piece;
  while (sm90_fp8::next_piece(shared, piece_at, piece)) {
    float o[kBlocks][kAccumulators];
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) o[0][i] = o[1][i] = 0.0F;
    for (int i = 0; i < piece.num_pages; ++i) {
      const auto arrived_half = [&] {
        const int slot = half_at.slot();
        sm90::barrier_wait(shared.page_full(slot), half_at.parity());
        half_at.advance();
        return slot;
      };
      const int half0 = arrived_half();
      const int half1 = arrived_half();
      const std::uint32_t values0 = shared.stage(half0) + tiles;
      const std::uint32_t values1 = shared.stage(half1) + tiles;
      sm90::barrier_wait(shared.prob_full(0), prob_at.parity());
      const int keys = piece.num_keys - i * kPageKeys;
      if (keys < kPageKeys) {
        clear_tail(values0, keys, thread);
        clear_tail(values1, keys, thread);
        sm90::fence_proxy_async();
        sm90::sync_warpgroup(1 + group);
      }
      if (sm90_fp8::any_rescaled(shared.rescaled(0))) {
        for (auto& block : o) rescale_rows(block, shared.alpha(0), row);
      }
      const std::uint64_t weights =
          sm90::matrix_descriptor(shared.prob(0), sm90::Swizzle::k128Bytes);
      sm90::pin(o[0]);
      sm90::pin(o[1]);
      sm90::wgmma_fence();
      // Keys 0..31, whose weights come first.
      issue_block<0, 2>(o[0], weights, values0);
      issue_block<0, 2>(o[1], weights, values1);
      sm90::barrier_wait(shared.prob_full(1), prob_at.parity());
      sm90::wgmma_fence();
      issue_block<2, 4>(o[0], weights, values0);
      sm90::wgmma_commit();
      issue_block<2, 4>(o[1], weights, values1);
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      __syncwarp();
      if (sm90::elect_one()) sm90::barrier_arrive(shared.page_empty(half0));
      sm90::wgmma_wait<0>();
      sm90::pin(o[0]);
      sm90::pin(o[1]);
      __syncwarp();
      if (sm90::elect_one()) {
        sm90::barrier_arrive(shared.page_empty(half1));
        sm90::barrier_arrive(shared.prob_empty(0));
      }
      prob_at.advance();
    }
    sm90::barrier_wait(shared.sums_full(), sums_at.parity());
    // Read again, lest the addresses of all stores be kept, in local memory, from the start.
    store_rows(shared, o, piece.split >= 0, row, sm90::thread_index() & 3, group * kWarpgroupDims);
    sm90::barrier_arrive(shared.sums_empty());
    sums_at.advance();
  }
}

}  // namespace mladcp::sm90_bf16
