// Warpgroup 0: S = Q K^T, the online softmax, P into shared memory.
//
// A page's weights are published in two halves, keys 0..31 and 32..63: the first while the
// exponentials of the second are still worked on, the second when the first steps of the next
// page's S are on their way.
#pragma once

#include <type_traits>

#include "kernels/decode/sm90_bf16/query.cuh"
#include "kernels/decode/sm90_fp8/softmax.cuh"

namespace mladcp::sm90_bf16 {

// Steps of the next page's S that are issued before the second half of the weights is published:
// those that leave shared memory to others, their query being in registers.
inline constexpr int kEarlySteps = 2 * kTileSteps;

// The weights of a page, and by what to multiply what was accumulated before.
struct PageWeights {
  sm90_fp8::PackedWeights<Config> packed;
  bool rescale;
  float alpha0;
  float alpha1;

  // Keys 32 half..32 half + 31 of this warp's rows.
  __device__ __forceinline__ void store(std::uint32_t tile, int half, int warp, int lane) const {
    const int row = 16 * warp + (lane & 7);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t* word = packed.word + 8 * h + 4 * half;
      sm90::store_matrix_x4(tile + sm90_fp8::swizzled_128(row + 8 * h, 4 * half + (lane >> 3)),
                            word[0], word[1], word[2], word[3]);
    }
  }
};

// Scores of a page to weights; publish() is called when those of keys 0..31 are there.
template <class Publish>
__device__ __forceinline__ void weigh_scores(float (&s)[32], bool first_page, float scale,
                                             sm90_fp8::RowState& row0, sm90_fp8::RowState& row1,
                                             PageWeights& weights, const Publish& publish) {
  using namespace sm90_fp8;
  if (__builtin_expect(first_page, 0)) {
    set_reference<Config>(row0, s, 0, scale);
    set_reference<Config>(row1, s, 1, scale);
  }
  to_exponents(s, row0, row1, scale);
  const int bits0 = max_bits(s, 0);
  const int bits1 = max_bits(s, 1);
  weights.rescale =
      __any_sync(~0U, max(bits0, bits1) > __float_as_int(Config::kOffset + Config::kTau));
  weights.alpha0 = weights.alpha1 = 1.0F;
  if (__builtin_expect(weights.rescale, 0)) {
    weights.alpha0 = follow_maximum<Config>(row0, s, 0, bits0);
    weights.alpha1 = follow_maximum<Config>(row1, s, 1, bits1);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    float* weight = s + kGroupSize * group;
    to_weights(weight, weight);
    add_group(row0, row1, weight);
    weights.packed.pack(group, weight);
    if (group == kGroups / 2 - 1) publish();
  }
}

__device__ __forceinline__ void attend(const DecodeParams& p, const Shared& shared, int tile) {
  using namespace sm90_fp8;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, (threadIdx.x >> 5) & 3, 0);
  // Read again where they are needed, for want of registers.
  const auto column = [] { return sm90::thread_index() & 3; };
  const auto first_row = [] {
    return sm90::thread_index() / 32 * 16 + (sm90::thread_index() & 31) / 4;
  };
  const float scale = p.logit_scale * kLog2E;

  PieceCursor piece_at;
  SingleCursor query_at;
  RopeCursor rope_at;
  HalfCursor half_at;
  bool moved = false;  // whether shared memory holds factors other than 1
  Piece piece;
  while (next_piece(shared, piece_at, piece)) {
    RowState row0{kUnsetReference, 0.0F};
    RowState row1{kUnsetReference, 0.0F};
    if (piece.num_pages > 0) {
      // Not touched before the first product is on its way: they may come from far.
      const int n0 = first_row();
      const int visible0 = visible_keys<Config>(p, piece, tile, n0);
      const int visible1 = visible_keys<Config>(p, piece, tile, n0 + 8);
      // Warps without a row keep in step, but leave their rows of P as they are.
      const bool active = 16 * warp < piece.num_rows;

      QueryOperand query;
      query.load(p, piece, tile, n0, column());
      sm90::barrier_wait(shared.query_full(), query_at.parity());
      query_at.advance();

      float s[32];
      PageWeights weights;
      const auto publish_half = [&](int half) {
        if (active) weights.store(shared.prob(0), half, warp, lane);
        sm90::fence_proxy_async();
        __syncwarp();
        if (sm90::elect_one()) sm90::barrier_arrive(shared.prob_full(half));
      };
      const auto publish_first = [&] {
        // The rope of the page at hand has been let go of already.
        const SingleCursor prob_at{rope_at.count - 1};
        sm90::barrier_wait(shared.prob_empty(0), prob_at.parity() ^ 1);
        // What was published last still stands there; mostly nothing moved then either.
        if (active && __builtin_expect(weights.rescale || moved, 0)) {
          publish_factors<Config>(shared, 0, warp, lane, weights.rescale, weights.alpha0,
                                  weights.alpha1);
          moved = weights.rescale;
        }
        publish_half(0);
      };
      // S of the next page; the second half of the weights at hand goes out on the way, or first
      // of all where the page is not there yet.
      const auto begin_scores = [&](auto publishes) {
        const int half0 = half_at.slot();
        const std::uint32_t parity0 = half_at.parity();
        half_at.advance();
        const int half1 = half_at.slot();
        const std::uint32_t parity1 = half_at.parity();
        half_at.advance();
        const std::uint32_t first = shared.stage(half0);
        const std::uint32_t rope = shared.rope(rope_at.slot());
        const std::uint32_t second = shared.stage(half1);
        bool ready = false;
        if constexpr (publishes.value) {
          ready = sm90::barrier_test(shared.page_full(half0), parity0);
          if (!ready) publish_half(1);
        }
        sm90::barrier_wait(shared.page_full(half0), parity0);
        sm90::wgmma_fence();
        query.issue<0, kEarlySteps>(s, shared, first, rope, second);
        if constexpr (publishes.value) {
          if (ready) publish_half(1);
          sm90::wgmma_fence();
        }
        query.issue<kEarlySteps, kRopeBegin>(s, shared, first, rope, second);
        sm90::barrier_wait(shared.rope_full(rope_at.slot()), rope_at.parity());
        sm90::wgmma_fence();
        query.issue<kRopeBegin, kSecondBegin>(s, shared, first, rope, second);
        sm90::barrier_wait(shared.page_full(half1), parity1);
        sm90::wgmma_fence();
        query.issue<kSecondBegin, kQkSteps>(s, shared, first, rope, second);
        sm90::wgmma_commit();
      };
      const auto finish_scores = [&] {
        sm90::wgmma_wait<0>();
        sm90::pin(s);
        __syncwarp();
        if (sm90::elect_one()) sm90::barrier_arrive(shared.rope_empty(rope_at.slot()));
        rope_at.advance();
      };
      begin_scores(std::false_type{});
      // From the first page on.
      const int limit0 = visible0 - piece.first_key;
      const int limit1 = visible1 - piece.first_key;
      const int clean_keys = __reduce_min_sync(~0U, min(limit0, limit1));
      // Page i from scores to weights, of which the first half is published.
      const auto weigh = [&](int i) {
        if (!active) {
          publish_first();
          return;
        }
        const int first = i * kPageKeys;
        if (__builtin_expect(first + kPageKeys > clean_keys, 0)) {
          mask_scores(s, limit0 - first, limit1 - first, column());
        }
        weigh_scores(s, i == 0, scale, row0, row1, weights, publish_first);
      };
      const int last = piece.num_pages - 1;
      for (int i = 0; i < last; ++i) {
        finish_scores();
        weigh(i);
        begin_scores(std::true_type{});
      }
      finish_scores();
      sm90::barrier_arrive(shared.query_empty());
      weigh(last);
      publish_half(1);
    }

    const SingleCursor sums_at{piece_at.count - 1};
    const float sum0 = quad_sum(row0.sum);
    const float sum1 = quad_sum(row1.sum);
    sm90::barrier_wait(shared.sums_empty(), sums_at.parity() ^ 1);
    if (column() == 0) {
      const int n0 = first_row();
      finish_row<Config>(p, shared, piece, tile, n0, sum0, row0.reference);
      finish_row<Config>(p, shared, piece, tile, n0 + 8, sum1, row1.reference);
    }
    sm90::barrier_arrive(shared.sums_full());
  }
}

}  // namespace mladcp::sm90_bf16
