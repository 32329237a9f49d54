// Warpgroup 0: S = Q K^T, the online softmax, P into shared memory.
//
// Alone, a page's weights are published in two halves, keys 0..31 and 32..63: the first while the
// exponentials of the second are still worked on, the second when the first steps of the next
// page's S are on their way. Those of a pair are published in one, to the partner as well, before
// the last steps of the next page's S: P V then runs under the softmax of that page.
#pragma once

#include <type_traits>

#include "kernels/decode/sm90_bf16/query.cuh"
#include "kernels/decode/sm90_fp8/softmax.cuh"

namespace mladcp::sm90_bf16 {

// The weights of a page, and by what to multiply what was accumulated before.
template <class C>
struct PageWeights {
  sm90_fp8::PackedWeights<C> packed;
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
template <class C, class Publish>
__device__ __forceinline__ void weigh_scores(float (&s)[32], bool first_page, float scale,
                                             sm90_fp8::RowState& row0, sm90_fp8::RowState& row1,
                                             PageWeights<C>& weights, const Publish& publish) {
  using namespace sm90_fp8;
  if (__builtin_expect(first_page, 0)) {
    set_reference<C>(row0, s, 0, scale);
    set_reference<C>(row1, s, 1, scale);
  }
  to_exponents(s, row0, row1, scale);
  const int bits0 = max_bits(s, 0);
  const int bits1 = max_bits(s, 1);
  weights.rescale = __any_sync(~0U, max(bits0, bits1) > __float_as_int(C::kOffset + C::kTau));
  weights.alpha0 = weights.alpha1 = 1.0F;
  if (__builtin_expect(weights.rescale, 0)) {
    weights.alpha0 = follow_maximum<C>(row0, s, 0, bits0);
    weights.alpha1 = follow_maximum<C>(row1, s, 1, bits1);
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

// A warp of the warpgroup; its rows are 16 warp + 0..15 of the tile.
template <class C>
class ScoreWarp {
 public:
  __device__ __forceinline__ ScoreWarp(const DecodeParams& p, const Shared<C>& shared, int tile,
                                       int rank)
      : p_(p), shared_(shared), tile_(tile), rank_(rank) {}

  __device__ __forceinline__ void attend() {
    sm90_fp8::PieceCursor piece_at;
    sm90_fp8::Piece piece;
    while (sm90_fp8::next_piece(shared_, piece_at, piece)) {
      row0_ = row1_ = {sm90_fp8::kUnsetReference, 0.0F};
      if (piece.num_pages > 0) walk(piece);
      finish(piece, sm90_fp8::SingleCursor{piece_at.count - 1});
    }
  }

 private:
  // Read again where it is needed, for want of registers.
  static __device__ __forceinline__ int column() { return sm90::thread_index() & 3; }
  static __device__ __forceinline__ int first_row() {
    return sm90::thread_index() / 32 * 16 + (sm90::thread_index() & 31) / 4;
  }

  __device__ __forceinline__ void walk(const sm90_fp8::Piece& piece) {
    // Not touched before the first product is on its way: they may come from far.
    const int n0 = first_row();
    const int visible0 = sm90_fp8::visible_keys<C>(p_, piece, tile_, n0);
    const int visible1 = sm90_fp8::visible_keys<C>(p_, piece, tile_, n0 + 8);
    // Warps without a row keep in step, but leave their rows of P as they are.
    active_ = 16 * warp_ < piece.num_rows;
    query_.load(p_, piece, tile_, n0, column());
    sm90::barrier_wait(shared_.query_full(), query_at_.parity());
    query_at_.advance();
    begin_scores(std::false_type{});
    // From the first page on.
    const int limit0 = visible0 - piece.first_key;
    const int limit1 = visible1 - piece.first_key;
    const int clean_keys = __reduce_min_sync(~0U, min(limit0, limit1));
    const int last = piece.num_pages - 1;
    for (int i = 0; i < last; ++i) {
      finish_scores();
      weigh(i, limit0, limit1, clean_keys);
      begin_scores(std::true_type{});
    }
    finish_scores();
    sm90::barrier_arrive(shared_.query_empty());
    weigh(last, limit0, limit1, clean_keys);
    publish_rest();
  }

  __device__ __forceinline__ bool is_there(const HalfAt& half) const {
    return sm90::barrier_test(shared_.page_full(half.slot), half.parity);
  }
  __device__ __forceinline__ void wait_for(const HalfAt& half) const {
    sm90::barrier_wait(shared_.page_full(half.slot), half.parity);
  }

  // S of the next page; what is left of the weights at hand goes out on the way, or first of all
  // where the page is not there yet.
  template <class Publishes>
  __device__ __forceinline__ void begin_scores(Publishes) {
    HalfAt half[kHalves];
    half_at_.take(half, rank_);
    bool ready = false;
    if constexpr (Publishes::value) {
      ready = next_is_there_ || (is_there(half[0]) && (!C::kPair || is_there(half[1])));
      if (!ready) publish_rest();
    }
#pragma unroll
    for (int place = 0; place < kTiles; ++place) {
      if (place == 0 && !(C::kPair && ready)) wait_for(half[0]);
      if (place == C::kSecondPlace && !(C::kPair && ready)) wait_for(half[1]);
      if (place == C::kRopePlace) {
        sm90::barrier_wait(shared_.rope_full(rope_at_.slot()), rope_at_.parity());
      }
      if (Publishes::value && place == C::kPublishPlace && ready) publish_rest();
      if (place == 0 || place == C::kSecondPlace || place == C::kRopePlace ||
          (Publishes::value && place == C::kPublishPlace)) {
        sm90::wgmma_fence();
      }
      const int in_half = place < kHalfTiles ? place : place - C::kSecondPlace;
      const std::uint32_t key =
          place == C::kRopePlace
              ? shared_.rope(rope_at_.slot())
              : shared_.stage(half[place < kHalfTiles ? 0 : 1].slot) + in_half * kTileBytes;
      query_.issue(s_, shared_, place, key);
    }
    sm90::wgmma_commit();
  }

  __device__ __forceinline__ void finish_scores() {
    sm90::wgmma_wait<0>();
    sm90::pin(s_);
    __syncwarp();
    if (sm90::elect_one()) {
      sm90::barrier_arrive(shared_.rope_empty(rope_at_.slot()));
      if constexpr (C::kPair) {
        sm90::barrier_arrive(shared_.page_empty(half_at_.taken_passing_slot()));
      }
    }
    rope_at_.advance();
    if constexpr (C::kPair) {
      // Asked now, known when the softmax is done.
      next_is_there_ = is_there(half_at_.kept_half()) && is_there(half_at_.passing_half());
    }
  }

  // Page i from scores to weights.
  __device__ __forceinline__ void weigh(int i, int limit0, int limit1, int clean_keys) {
    const auto publish = [&] {
      if constexpr (!C::kPair) publish_first_half();
    };
    if (!active_) {
      publish();
      return;
    }
    const int first = i * kPageKeys;
    if (__builtin_expect(first + kPageKeys > clean_keys, 0)) {
      sm90_fp8::mask_scores(s_, limit0 - first, limit1 - first, column());
    }
    weigh_scores(s_, i == 0, p_.logit_scale * sm90_fp8::kLog2E, row0_, row1_, weights_, publish);
  }

  // P V of the page before is done with P. (Its rope has been let go of already.)
  __device__ __forceinline__ void wait_for_room() const {
    const sm90_fp8::SingleCursor prob_at{rope_at_.count - 1};
    sm90::barrier_wait(shared_.prob_empty(0), prob_at.parity() ^ 1);
  }

  // What was published last still stands there; mostly nothing moved then either.
  __device__ __forceinline__ bool factors_are_news() const {
    return active_ && __builtin_expect(weights_.rescale || moved_, 0);
  }

  __device__ __forceinline__ void publish_half(int half) {
    if (active_) weights_.store(shared_.prob(0), half, warp_, lane_);
    sm90::fence_proxy_async();
    __syncwarp();
    if (sm90::elect_one()) sm90::barrier_arrive(shared_.prob_full(half));
  }

  __device__ __forceinline__ void publish_first_half() {
    wait_for_room();
    if (factors_are_news()) {
      sm90_fp8::publish_factors<C>(shared_, 0, warp_, lane_, weights_.rescale, weights_.alpha0,
                                   weights_.alpha1);
      moved_ = weights_.rescale;
    }
    publish_half(0);
  }

  __device__ __forceinline__ void publish_rest() {
    if constexpr (C::kPair) {
      publish_to_both();
    } else {
      publish_half(1);
    }
  }

  __device__ __forceinline__ void store_record() {
    const std::uint32_t record = shared_.record(0, warp_);
    if (column() == 0) {
      const std::uint32_t at = record + 4 * (lane_ >> 2);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(weights_.alpha0) : "memory");
      asm volatile("st.shared.f32 [%0+32], %1;" ::"r"(at), "f"(weights_.alpha1) : "memory");
    }
    if (lane_ == 0) {
      asm volatile("st.shared.s32 [%0], %1;" ::"r"(record + kRecordFlag),
                   "r"(static_cast<int>(weights_.rescale))
                   : "memory");
    }
    moved_ = weights_.rescale;
  }

  __device__ __forceinline__ void publish_to_both() {
    wait_for_room();
    if (factors_are_news()) store_record();
    if (active_) {
      weights_.store(shared_.prob(0), 0, warp_, lane_);
      weights_.store(shared_.prob(0), 1, warp_, lane_);
    }
    sm90::fence_proxy_async();
    __syncwarp();
    if (sm90::elect_one()) {
      sm90::barrier_arrive(shared_.prob_full(0));
      constexpr int kBytes = C::kProbBytes / kScoreWarps;
      const std::uint32_t full = shared_.prob_full(1);
      send(shared_.record(0, warp_), shared_.record(1, warp_), kRecordBytes, full);
      send(shared_.prob(0) + warp_ * kBytes, shared_.prob(1) + warp_ * kBytes, kBytes, full);
    }
  }

  // To the partner, where `to` lies and the barrier `full` counts the bytes.
  __device__ __forceinline__ void send(std::uint32_t from, std::uint32_t to, std::uint32_t bytes,
                                       std::uint32_t full) const {
    sm90::bulk_copy_remote(sm90::address_at(to, rank_ ^ 1), from, bytes,
                           sm90::address_at(full, rank_ ^ 1));
  }

  // Sums of the rows, where they go, and their LSE.
  __device__ __forceinline__ void finish(const sm90_fp8::Piece& piece,
                                         sm90_fp8::SingleCursor sums_at) {
    const float sum0 = sm90_fp8::quad_sum(row0_.sum);
    const float sum1 = sm90_fp8::quad_sum(row1_.sum);
    sm90::barrier_wait(shared_.sums_empty(), sums_at.parity() ^ 1);
    if (column() == 0) {
      const int n0 = first_row();
      sm90_fp8::finish_row<C>(p_, shared_, piece, tile_, n0, sum0, row0_.reference);
      sm90_fp8::finish_row<C>(p_, shared_, piece, tile_, n0 + 8, sum1, row1_.reference);
    }
    if constexpr (C::kPair) {
      sm90::fence_proxy_async();
      __syncwarp();
      if (sm90::elect_one()) {
        const std::uint32_t scales = 16 * 4 * warp_;
        const std::uint32_t targets = 16 * 8 * warp_;
        const std::uint32_t full = shared_.sums_full(1);
        send(shared_.row_scale(0) + scales, shared_.row_scale(1) + scales, 16 * 4, full);
        send(shared_.row_target(0) + targets, shared_.row_target(1) + targets, 16 * 8, full);
      }
    }
    sm90::barrier_arrive(shared_.sums_full(0));
  }

  const DecodeParams& p_;
  const Shared<C>& shared_;
  const int tile_;
  const int rank_;  // in the pair
  const int lane_ = static_cast<int>(threadIdx.x & 31);
  const int warp_ = __shfl_sync(~0U, static_cast<int>(threadIdx.x >> 5) & 3, 0);

  sm90_fp8::SingleCursor query_at_;
  RopeCursor<C> rope_at_;
  HalfCursor<C> half_at_;

  bool active_ = false;         // whether a row of the warp exists
  bool moved_ = false;          // whether shared memory holds factors other than 1
  bool next_is_there_ = false;  // pairs: both halves of the next page
  sm90_fp8::RowState row0_;
  sm90_fp8::RowState row1_;
  QueryOperand<C> query_;
  float s_[32];
  PageWeights<C> weights_;
};

}  // namespace mladcp::sm90_bf16
