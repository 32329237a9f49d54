// Warpgroup 0: S = Q K^T by wgmma, the online softmax, and P into shared memory.
//
// Thread (warp w, g = lane / 4, t = lane % 4) holds rows 16w + g and 16w + 8 + g of S, keys 8j + 2t
// + b in registers s[4j + 2h + b] (h picks the row).
#pragma once

#include "kernels/decode/sm90_common/wgmma.cuh"
#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_fp8 {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;
// Larger than any reference: the first finite maximum always moves it.
inline constexpr float kUnsetReference = 1e30F;

// wgmma steps that a warpgroup can issue without waiting for the first to finish.
inline constexpr int kEarlySteps = 6;

// One row of the tile, as one thread sees it. Weights are exp2(s * scale + reference).
struct RowState {
  float reference;
  float sum;  // over this thread's keys, unquantised
};

// The query as an operand of S = Q K^T: most steps in registers, the rest in shared memory.
template <class C>
struct QueryOperand {
  // Whether the query's buffer is still read after load().
  static constexpr bool kKeepsBuffer = C::kQueryRegisterSteps < kQkSteps;

  std::uint32_t q[C::kQueryRegisterSteps][4];

  // ldmatrix gives the A fragment as it is: rows +0 / +8, then the second 16 bytes of both.
  __device__ __forceinline__ void load(const Shared<C>& shared, int warp, int lane, bool active) {
    const int row = 16 * (active ? warp : 0) + (lane & 15);
    const int chunk = lane >> 4;
#pragma unroll
    for (int k = 0; k < C::kQueryRegisterSteps; ++k) {
      const std::uint32_t address =
          k < 16
              ? shared.query() + (k / 4) * (C::kRows * 128) + swizzled_128(row, 2 * (k % 4) + chunk)
              : shared.query() + C::kQueryRopeTile + swizzled_64(row, 2 * (k - 16) + chunk);
      sm90::load_matrix_x4(q[k], address);
      if (!active) q[k][0] = q[k][1] = q[k][2] = q[k][3] = 0;
    }
  }

  // Steps kBegin..kEnd - 1 for the page in `stage`.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void issue(float (&s)[32], const Shared<C>& shared, int stage) const {
    using sm90::Swizzle;
    const std::uint32_t page = shared.stage(stage);
    const std::uint64_t key_latent = sm90::matrix_descriptor(page, Swizzle::k128Bytes);
    const std::uint64_t key_rope =
        sm90::matrix_descriptor(page + kRopeTileOffset, Swizzle::k64Bytes);
    const std::uint64_t query_latent = sm90::matrix_descriptor(shared.query(), Swizzle::k128Bytes);
    const std::uint64_t query_rope =
        sm90::matrix_descriptor(shared.query() + C::kQueryRopeTile, Swizzle::k64Bytes);
#pragma unroll
    for (int k = kBegin; k < kEnd; ++k) {
      // 4 steps a latent tile of 8 KiB (512 descriptor units), 2 units a step.
      const std::uint64_t key =
          k < 16 ? key_latent + (k / 4) * 512 + (k % 4) * 2 : key_rope + (k - 16) * 2;
      if (k < C::kQueryRegisterSteps) {
        sm90::wgmma_e4m3(s, q[k < C::kQueryRegisterSteps ? k : 0], key, k > 0);
      } else {
        const std::uint64_t query =
            k < 16 ? query_latent + (k / 4) * 512 + (k % 4) * 2 : query_rope + (k - 16) * 2;
        sm90::wgmma_e4m3(s, query, key, true);
      }
    }
  }
};

// Hides keys at or beyond the rows' limits, counted from the page's first key.
__device__ __forceinline__ void mask_scores(float (&s)[32], int limit0, int limit1, int t) {
  constexpr float kHidden = -__builtin_huge_valf();
  limit0 -= 2 * t;
  limit1 -= 2 * t;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (8 * j + b >= limit0) s[4 * j + b] = kHidden;
      if (8 * j + b >= limit1) s[4 * j + 2 + b] = kHidden;
    }
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

// The reference of a row from the scores of its first page. A row that sees none of them sees no
// key of the piece at all and keeps its reference.
template <class C>
__device__ __forceinline__ void set_reference(RowState& row, const float (&s)[32], int h,
                                              float scale) {
  float maximum = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
  for (int j = 1; j < 8; ++j) {
    maximum = fmaxf(maximum, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
  }
  maximum = quad_max(maximum);
  if (maximum > -__builtin_huge_valf()) row.reference = fmaf(-maximum, scale, C::kOffset);
}

// Largest of a row's 16 exponents, as bits: right whenever one of them is positive, since positive
// floats order like integers and above all negative ones. The hardware has a max of three for
// integers, not for floats.
__device__ __forceinline__ int max_bits(const float (&x)[32], int h) {
  const auto bits = [&](int j, int b) { return __float_as_int(x[4 * j + 2 * h + b]); };
  int m = max(bits(0, 0), bits(0, 1));
#pragma unroll
  for (int j = 1; j < 8; ++j) m = __vimax3_s32(m, bits(j, 0), bits(j, 1));
  return m;
}

// Lowers a row's exponents to the offset where its maximum outgrew the top; returns the factor for
// what was accumulated before, 1 where nothing moved. A row decides for itself, so its bits do not
// depend on its neighbours.
template <class C>
__device__ __forceinline__ float follow_maximum(RowState& row, float (&x)[32], int h, int bits) {
  bits = max(bits, __shfl_xor_sync(~0U, bits, 1));
  bits = max(bits, __shfl_xor_sync(~0U, bits, 2));
  const float maximum = __int_as_float(bits);
  if (!(bits > 0 && maximum > C::kOffset + C::kTau)) return 1.0F;
  const float shift = C::kOffset - maximum;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[4 * j + 2 * h] += shift;
    x[4 * j + 2 * h + 1] += shift;
  }
  const float alpha = sm90::exp2_approx(shift);
  row.reference += shift;
  row.sum *= alpha;
  return alpha;
}

// Scores to exponents of 2, in place.
__device__ __forceinline__ void to_exponents(float (&s)[32], const RowState& row0,
                                             const RowState& row1, float scale) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    s[4 * j] = fmaf(s[4 * j], scale, row0.reference);
    s[4 * j + 1] = fmaf(s[4 * j + 1], scale, row0.reference);
    s[4 * j + 2] = fmaf(s[4 * j + 2], scale, row1.reference);
    s[4 * j + 3] = fmaf(s[4 * j + 3], scale, row1.reference);
  }
}

// The exponents of a page are worked on in four groups of eight registers, 16 keys of two rows.
inline constexpr int kGroups = 4;
inline constexpr int kGroupSize = 8;

// Exponents of a group to weights.
__device__ __forceinline__ void to_weights(float* w, const float* x) {
#pragma unroll
  for (int r = 0; r < kGroupSize; ++r) w[r] = sm90::exp2_approx(x[r]);
}

__device__ __forceinline__ void add_group(RowState& row0, RowState& row1, const float* w) {
  row0.sum += (w[0] + w[1]) + (w[4] + w[5]);
  row1.sum += (w[2] + w[3]) + (w[6] + w[7]);
}

// Lowers the reference of a row after its first page where many keys share the weight: its maximum
// will still creep up from page to page, and each step costs a pass over O. A row whose first page
// holds a sink keeps the offset, because its other weights need every bit.
template <class C>
__device__ __forceinline__ void give_headroom(RowState& row, float (&s)[32], int h) {
  const float full = exp2f(C::kOffset);
  if (quad_sum(row.sum) < 4.0F * full) return;
  constexpr float kFactor = 0.25F;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    s[4 * j + 2 * h] *= kFactor;
    s[4 * j + 2 * h + 1] *= kFactor;
  }
  row.sum *= kFactor;
  row.reference -= 2.0F;
}

// This warp's 16 rows of P as stmatrix takes them. e4m3: word 4h + i is row half h, keys 16i..16i +
// 15 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is the order the V fragments come
// in. f16: word 8h + j is row half h, keys 8j..8j + 7 in order.
template <class C>
struct PackedWeights {
  static constexpr int kWords = C::kPv16Bit ? 16 : 8;
  std::uint32_t word[kWords];

  // Group i of the weights `w`, keys 16i..16i + 15.
  __device__ __forceinline__ void pack(int i, const float* w) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* v = w + 2 * h;
      if constexpr (C::kPv == PvFormat::kBF16) {
        word[8 * h + 2 * i] = sm90::pack_bf16x2(v[0], v[1]);
        word[8 * h + 2 * i + 1] = sm90::pack_bf16x2(v[4], v[5]);
      } else if constexpr (C::kPv == PvFormat::kF16) {
        word[8 * h + 2 * i] = sm90::pack_f16x2(v[0], v[1]);
        word[8 * h + 2 * i + 1] = sm90::pack_f16x2(v[4], v[5]);
      } else {
        word[4 * h + i] = sm90::pack_e4m3x4(v[0], v[1], v[4], v[5]);
      }
    }
  }

  // The tile is [rows][64 B] (e4m3) or [rows][128 B] (f16), swizzled. Eight rows further the
  // swizzle is the same, four chunks further it differs in one bit.
  __device__ __forceinline__ void store(std::uint32_t tile, int warp, int lane) const {
    constexpr int kRowBytes = C::kPv16Bit ? 128 : 64;
    constexpr int kRowWords = kWords / 2;
    const int row = 16 * warp + (lane & 7);
    const std::uint32_t at =
        tile + (C::kPv16Bit ? swizzled_128(row, lane >> 3) : swizzled_64(row, lane >> 3));
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      sm90::store_matrix_x4((i % kRowWords == 0 ? at : at ^ 64) + i / kRowWords * 8 * kRowBytes,
                            word[i], word[i + 1], word[i + 2], word[i + 3]);
    }
  }
};

// Tells the PV warps by what to multiply the rows of O before this page's product is added.
template <class C>
__device__ __forceinline__ void publish_factors(const Shared<C>& shared, int slot, int warp,
                                                int lane, bool rescale, float alpha0,
                                                float alpha1) {
  if ((lane & 3) == 0) {
    const std::uint32_t at = shared.alpha(slot) + 4 * alpha_index(16 * warp + (lane >> 2));
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(alpha0) : "memory");
    // Row + 8 is two places further.
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 8), "f"(alpha1) : "memory");
  }
  if (lane == 0) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared.rescaled(slot) + 4 * warp),
                 "r"(static_cast<int>(rescale))
                 : "memory");
  }
}

// Sums, scales, addresses and LSE of one row when its piece has ended.
template <class C>
__device__ __forceinline__ void finish_row(const DecodeParams& p, const Shared<C>& shared,
                                           const Piece& piece, int tile, int n, float sum,
                                           float reference) {
  const bool seen = sum > 0.0F;
  const bool unscaled = C::kF16Partials && piece.split >= 0;
  const float scale = seen ? __fdividef(unscaled ? 1.0F : p.output_scale, sum) : 0.0F;
  const float lse = seen ? __logf(sum) - reference * kLn2 : -__builtin_huge_valf();
  // Where the row goes, with bit 0 set when that is a partial; 0 for rows that do not exist.
  std::uint64_t target = 0;
  if (n < piece.num_rows) {
    const int index = tile * C::kRows + n;
    if (piece.split >= 0) {
      const std::int64_t row =
          static_cast<std::int64_t>(piece.split) * p.max_rows_per_request * p.num_heads + index;
      constexpr int kBytes = kDecodeLatentRank * (C::kF16Partials ? 2 : 4);
      target =
          reinterpret_cast<std::uint64_t>(static_cast<char*>(p.partial_out) + row * kBytes) | 1;
      p.partial_lse[row] = lse;
    } else {
      const int token = index / p.num_heads;
      const int head = index - token * p.num_heads;
      const std::int64_t t = piece.row_begin + token;
      target = reinterpret_cast<std::uint64_t>(static_cast<std::uint16_t*>(p.out) +
                                               t * p.out_row_stride + head * p.out_head_stride);
      p.lse[t * p.lse_row_stride + head * p.lse_head_stride] = lse;
    }
  }
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared.row_scale() + 4 * n), "f"(scale) : "memory");
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(shared.row_target() + 8 * n), "l"(target)
               : "memory");
}

// Keys of its request that tile row n sees.
template <class C>
__device__ __forceinline__ int visible_keys(const DecodeParams& p, const Piece& piece, int tile,
                                            int n) {
  // Rows that do not exist see everything: nobody reads their output.
  if (n >= piece.num_rows) return piece.first_key + piece.num_keys;
  const int token = (tile * C::kRows + n) / p.num_heads;
  return p.visible[piece.row_begin + token];
}

template <class C>
__device__ __forceinline__ void attend(const DecodeParams& p, const Shared<C>& shared, int tile) {
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, (threadIdx.x >> 5) & 3, 0);
  const int g = lane >> 2;
  const int t = lane & 3;
  const int n0 = 16 * warp + g;
  const bool active = warp < C::kSoftmaxWarps;
  const float scale = p.logit_scale * kLog2E;

  PieceCursor piece_at;
  SingleCursor query_at;
  SingleCursor sums_at;
  RingCursor<C::kStages> page_at;
  CountingCursor<1> prob_at;
  std::uint32_t moved_slots = 0;
  Piece piece;
  while (next_piece(shared, piece_at, piece)) {
    RowState row0{kUnsetReference, 0.0F};
    RowState row1{kUnsetReference, 0.0F};
    if (piece.num_pages > 0) {
      // Not touched before the first product is on its way: they may come from far.
      const int visible0 = active ? visible_keys<C>(p, piece, tile, n0) : 0;
      const int visible1 = active ? visible_keys<C>(p, piece, tile, n0 + 8) : 0;

      QueryOperand<C> query;
      sm90::barrier_wait(shared.query_full(), query_at.parity());
      query_at.advance();
      query.load(shared, warp, lane, active);
      if constexpr (!QueryOperand<C>::kKeepsBuffer) {
        sm90::barrier_arrive(shared.query_empty());
      }

      float s[32];
      sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
      sm90::wgmma_fence();
      query.template issue<0, kQkSteps>(s, shared, page_at.slot());
      sm90::wgmma_commit();
      // From the first page on.
      const int limit0 = visible0 - piece.first_key;
      const int limit1 = visible1 - piece.first_key;
      const int clean_keys = __reduce_min_sync(~0U, min(limit0, limit1));
      // Page i from the scores of this warp to the weights in shared memory.
      const auto weigh = [&](int i) {
        if (!active) return;
        const int first = i * kPageKeys;
        if (__builtin_expect(first + kPageKeys > clean_keys, 0))
          mask_scores(s, limit0 - first, limit1 - first, t);
        if (__builtin_expect(i == 0, 0)) {
          set_reference<C>(row0, s, 0, scale);
          set_reference<C>(row1, s, 1, scale);
        }
        to_exponents(s, row0, row1, scale);
        const int bits0 = max_bits(s, 0);
        const int bits1 = max_bits(s, 1);
        const bool slot_free =
            sm90::barrier_test(shared.prob_empty(prob_at.slot()), prob_at.parity() ^ 1);
        const bool rescale =
            __any_sync(~0U, max(bits0, bits1) > __float_as_int(C::kOffset + C::kTau));
        const std::uint32_t slot_bit = 1U << prob_at.slot();
        if (__builtin_expect(rescale, 0)) {
          const float alpha0 = follow_maximum<C>(row0, s, 0, bits0);
          const float alpha1 = follow_maximum<C>(row1, s, 1, bits1);
          sm90::barrier_wait(shared.prob_empty(prob_at.slot()), prob_at.parity() ^ 1);
          publish_factors<C>(shared, prob_at.slot(), warp, lane, true, alpha0, alpha1);
        }
        PackedWeights<C> weights;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          float* weight = s + kGroupSize * group;
          to_weights(weight, weight);
          add_group(row0, row1, weight);
          weights.pack(group, weight);
        }
        if (!C::kPv16Bit && __builtin_expect(i == 0, 0)) {
          give_headroom<C>(row0, s, 0);
          give_headroom<C>(row1, s, 1);
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            weights.pack(group, s + kGroupSize * group);
          }
        }
        // Only here, so that the PV warps have the whole softmax to let go of the slot.
        if (!slot_free) {
          sm90::barrier_wait(shared.prob_empty(prob_at.slot()), prob_at.parity() ^ 1);
        }
        weights.store(shared.prob(prob_at.slot()), warp, lane);
        // The slot still holds the factors of its last page; mostly nothing moved then either.
        if (__builtin_expect(!rescale && (moved_slots & slot_bit) != 0, 0)) {
          publish_factors<C>(shared, prob_at.slot(), warp, lane, false, 1.0F, 1.0F);
        }
        moved_slots = rescale ? moved_slots | slot_bit : moved_slots & ~slot_bit;
      };
      const auto publish_weights = [&] {
        if (!active) return;
        sm90::fence_proxy_async();
        __syncwarp();
        if (sm90::elect_one()) sm90::barrier_arrive(shared.prob_full(prob_at.slot()));
      };
      const int last = piece.num_pages - 1;
      for (int i = 0; i < last; ++i) {
        page_at.advance();
        const bool arrived = sm90::barrier_test(shared.page_full(page_at.slot()), page_at.parity());
        sm90::wgmma_wait<0>();
        sm90::pin(s);
        weigh(i);
        // The next page's first products go out before the weights are published, which takes a
        // while, if the page is there.
        const bool ready =
            arrived || sm90::barrier_try_wait(shared.page_full(page_at.slot()), page_at.parity());
        if (!ready) {
          publish_weights();
          sm90::barrier_wait(shared.page_full(page_at.slot()), page_at.parity());
        }
        sm90::wgmma_fence();
        query.template issue<0, kEarlySteps>(s, shared, page_at.slot());
        if (ready) publish_weights();
        query.template issue<kEarlySteps, kQkSteps>(s, shared, page_at.slot());
        sm90::wgmma_commit();
        prob_at.advance();
      }
      page_at.advance();
      sm90::wgmma_wait<0>();
      sm90::pin(s);
      if constexpr (QueryOperand<C>::kKeepsBuffer) {
        sm90::barrier_arrive(shared.query_empty());
      }
      weigh(last);
      publish_weights();
      prob_at.advance();
    }

    if (active) {
      const float sum0 = quad_sum(row0.sum);
      const float sum1 = quad_sum(row1.sum);
      sm90::barrier_wait(shared.sums_empty(), sums_at.parity() ^ 1);
      if (t == 0) {
        finish_row<C>(p, shared, piece, tile, n0, sum0, row0.reference);
        finish_row<C>(p, shared, piece, tile, n0 + 8, sum1, row1.reference);
      }
      sm90::barrier_arrive(shared.sums_full());
    }
    sums_at.advance();
  }
}

}  // namespace mladcp::sm90_fp8
