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

// O times the factors at `alpha`, of the thread's first row, and `to_second` bytes behind.
__device__ __forceinline__ void rescale_rows(float (&o)[kBlocks][kAccumulators],
                                             std::uint32_t alpha, int to_second) {
  float low;
  float high;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(low) : "r"(alpha) : "memory");
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(high) : "r"(alpha + to_second) : "memory");
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < kAccumulators / 4; ++j) {
      o[block][4 * j] *= low;
      o[block][4 * j + 1] *= low;
      o[block][4 * j + 2] *= high;
      o[block][4 * j + 3] *= high;
    }
  }
}

// Zeroes a block of values for the keys at or beyond `keys`: whatever the cache holds
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
template <class C>
__device__ __forceinline__ void store_rows(const Shared<C>& shared, int slot,
                                           float (&o)[kBlocks][kAccumulators], bool partial, int n,
                                           int t, int dim0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    std::uint64_t target;
    float scale;
    asm volatile("ld.shared.u64 %0, [%1];"
                 : "=l"(target)
                 : "r"(shared.row_target(slot) + 8 * (n + 8 * h))
                 : "memory");
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(scale)
                 : "r"(shared.row_scale(slot) + 4 * (n + 8 * h))
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

// A thread of PV warpgroup `group`, 0 or 1. Alone both work for the same rows, 256 dims each; in a
// pair for the same dims, group r for the rows of the CTA of rank r.
template <class C>
class OutputThread {
 public:
  __device__ __forceinline__ OutputThread(const Shared<C>& shared, int group, int rank)
      : shared_(shared), group_(group), rank_(rank), slot_(C::kPair ? group ^ rank : 0) {}

  __device__ __forceinline__ void accumulate() {
    sm90_fp8::PieceCursor piece_at;
    sm90_fp8::SingleCursor sums_at;
    sm90_fp8::Piece piece;
    while (sm90_fp8::next_piece(shared_, piece_at, piece)) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) o_[0][i] = o_[1][i] = 0.0F;
      for (int i = 0; i < piece.num_pages; ++i) add_page(piece.num_keys - i * kPageKeys);
      sm90::barrier_wait(shared_.sums_full(slot_), sums_at.parity());
      if (is_receiver()) shared_.expect_sums();
      // Read again, lest the addresses of all stores be kept, in local memory, from the start.
      store_rows(shared_, slot_, o_, piece.split >= 0, row_, sm90::thread_index() & 3,
                 (C::kPair ? rank_ : group_) * kWarpgroupDims);
      if constexpr (C::kPair) {
        sm90::barrier_arrive_remote(sm90::address_at(shared_.sums_empty(), group_));
      } else {
        sm90::barrier_arrive(shared_.sums_empty());
      }
      sums_at.advance();
    }
  }

 private:
  // The thread that lets the next message of the partner come in.
  __device__ __forceinline__ bool is_receiver() const {
    return C::kPair && slot_ == 1 && thread_ == 0;
  }

  // `keys`: of the page's first on, that exist.
  __device__ __forceinline__ void add_page(int keys) {
    HalfAt half[kHalves];
    std::uint32_t values[kBlocks];
    if constexpr (C::kPair) {
      half[0] = half_at_.kept_half();
      half_at_.kept.advance();
      values[0] = shared_.stage(half[0].slot);
      values[1] = values[0] + kBlockTiles * kTileBytes;
    } else {
      half_at_.take(half, 0);
      const int tiles = group_ * kBlockTiles * kTileBytes;  // inside a half
      values[0] = shared_.stage(half[0].slot) + tiles;
      values[1] = shared_.stage(half[1].slot) + tiles;
      sm90::barrier_wait(shared_.page_full(half[1].slot), half[1].parity);
    }
    sm90::barrier_wait(shared_.page_full(half[0].slot), half[0].parity);
    sm90::barrier_wait(shared_.prob_full(slot_), prob_at_.parity());
    if (is_receiver()) shared_.expect_weights();
    if (keys < kPageKeys) {
      // In a pair both warpgroups clear the same.
      for (const std::uint32_t block : values) clear_tail(block, keys, thread_);
      sm90::fence_proxy_async();
      sm90::sync_warpgroup(1 + group_);
    }
    rescale();
    const std::uint64_t weights =
        sm90::matrix_descriptor(shared_.prob(slot_), sm90::Swizzle::k128Bytes);
    sm90::pin(o_[0]);
    sm90::pin(o_[1]);
    sm90::wgmma_fence();
    if constexpr (C::kPair) {
      multiply_both(weights, values, half[0].slot);
    } else {
      multiply_as_published(weights, values, half);
    }
    prob_at_.advance();
  }

  __device__ __forceinline__ void rescale() {
    if constexpr (C::kPair) {
      const std::uint32_t record = shared_.record(slot_, thread_ >> 5);
      int moved;
      asm volatile("ld.shared.s32 %0, [%1];" : "=r"(moved) : "r"(record + kRecordFlag) : "memory");
      // The vote lets the compiler know that all lanes agree.
      if (__any_sync(~0U, moved != 0)) rescale_rows(o_, record + 4 * (row_ & 15), 8 * 4);
    } else if (sm90_fp8::any_rescaled(shared_.rescaled(0))) {
      rescale_rows(o_, shared_.alpha(0) + 4 * sm90_fp8::alpha_index(row_), 2 * 4);
    }
  }

  __device__ __forceinline__ void multiply_both(std::uint64_t weights,
                                                const std::uint32_t (&values)[kBlocks], int stage) {
    issue_block<0, 4>(o_[0], weights, values[0]);
    issue_block<0, 4>(o_[1], weights, values[1]);
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    sm90::pin(o_[0]);
    sm90::pin(o_[1]);
    __syncwarp();
    if (sm90::elect_one()) {
      sm90::barrier_arrive(shared_.page_empty(stage));
      sm90::barrier_arrive_remote(sm90::address_at(shared_.prob_empty(0), group_));
    }
  }

  // Keys 0..31, whose weights come first, then the others.
  __device__ __forceinline__ void multiply_as_published(std::uint64_t weights,
                                                        const std::uint32_t (&values)[kBlocks],
                                                        const HalfAt (&half)[kHalves]) {
    issue_block<0, 2>(o_[0], weights, values[0]);
    issue_block<0, 2>(o_[1], weights, values[1]);
    sm90::barrier_wait(shared_.prob_full(1), prob_at_.parity());
    sm90::wgmma_fence();
    issue_block<2, 4>(o_[0], weights, values[0]);
    sm90::wgmma_commit();
    issue_block<2, 4>(o_[1], weights, values[1]);
    sm90::wgmma_commit();
    sm90::wgmma_wait<1>();
    __syncwarp();
    if (sm90::elect_one()) sm90::barrier_arrive(shared_.page_empty(half[0].slot));
    sm90::wgmma_wait<0>();
    sm90::pin(o_[0]);
    sm90::pin(o_[1]);
    __syncwarp();
    if (sm90::elect_one()) {
      sm90::barrier_arrive(shared_.page_empty(half[1].slot));
      sm90::barrier_arrive(shared_.prob_empty(0));
    }
  }

  const Shared<C>& shared_;
  const int group_;
  const int rank_;  // in the pair
  const int slot_;  // whose rows: 1 are the partner's
  const int thread_ = static_cast<int>(threadIdx.x & 127);
  const int row_ = 16 * (thread_ >> 5) + static_cast<int>(threadIdx.x & 31) / 4;
  HalfCursor<C> half_at_;
  sm90_fp8::SingleCursor prob_at_;
  float o_[kBlocks][kAccumulators];
};

}  // namespace mladcp::sm90_bf16
