// One CTA: one tile of 64 query rows, one part of the schedule. Per block of keys, four phases
// between barriers:
//
//   copies     the block's cache rows arrive (cp.async), the next block's are started
//   S = Q K^T  warp = 32 rows x 32 keys x a half (bf16: a quarter) of D; the parts of D meet in
//              shared memory. Fragments of 32 x 32 need as many cycles of shared memory as of mma
//   softmax    four threads a row: online maximum, P = 2^(S - max + offset) in 16 bits
//   O += P V   warp = 64 rows x 64 latent dims, accumulators in registers for the whole walk
//
// e4m3 codes convert exactly to f16, in registers, right after the fragment load. An 8-bit matrix
// row of 16 bytes gives a lane k = 4t..4t+3 where the 16-bit fragment wants 2t, 2t+1, 2t+8, 2t+9:
// the query is stored in shared memory with its k permuted alike (a dot product does not mind), and
// the dims of V come out as pairs of interleaved columns, which the epilogue knows.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_params.h"
#include "kernels/decode/generic_decode.h"
#include "kernels/device/tensor_core.cuh"

namespace mladcp::generic_decode {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kRows = kGenericDecodeRows;
inline constexpr int kRowTiles = kRows / 16;
inline constexpr int kQueryPitch = kDecodeQkDim * 2;             // bytes, 9 x 128
inline constexpr int kCopiesPerThread = 9;                       // 16 bytes each, of one key
inline constexpr int kDimsPerWarp = kDecodeLatentRank / kWarps;  // 64
inline constexpr int kOutTiles = kDimsPerWarp / 8;
inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

template <DType kCache>
struct CacheTraits;

template <>
struct CacheTraits<DType::kE4M3> {
  using Element = __half;
  static constexpr int kKeys = 64;     // keys of one block in shared memory
  static constexpr int kDimParts = 2;  // of D, for the logits
  static constexpr int kRowBytes = kDecodeQkDim;
  static constexpr float kOffset = 15;  // P in [0, 2^15]: f16 flushes 2^-39 of the maximum
  // 576 = 4.5 x 128: neighbouring rows start 64 bytes apart in the banks, pairs of rows share a
  // column.
  static __device__ int swizzle(int row) { return (row >> 1) & 3; }
};

template <>
struct CacheTraits<DType::kBF16> {
  using Element = __nv_bfloat16;
  static constexpr int kKeys = 32;
  static constexpr int kDimParts = 4;
  static constexpr int kRowBytes = kDecodeQkDim * 2;
  static constexpr float kOffset = 0;  // bf16 has the exponents of fp32
  static __device__ int swizzle(int row) { return row & 7; }
};

template <DType kCache>
struct SharedLayout {
  using Traits = CacheTraits<kCache>;
  static constexpr int kLogitPitch = Traits::kKeys + 8;             // floats
  static constexpr int kProbabilityPitch = Traits::kKeys * 2 + 16;  // bytes
  static constexpr int kStageBytes = Traits::kKeys * Traits::kRowBytes;

  static constexpr int kQuery = 0;
  static constexpr int kLogits = kQuery + kRows * kQueryPitch;  // [parts of D][rows][pitch]
  static constexpr int kProbabilities = kLogits + Traits::kDimParts * kRows * kLogitPitch * 4;
  static constexpr int kRowFloats = kProbabilities + kRows * kProbabilityPitch;  // three per row
  static constexpr int kRowVisible = kRowFloats + 3 * kRows * 4;
  static constexpr int kStages = kRowVisible + kRows * 4;
  static_assert(kStages % 128 == 0, "swizzles count in rows of 128 bytes");
};

// What a CTA does with one request: rows of its tile, keys of its split, where results go.
struct Piece {
  int request;
  int first_row;   // global query row of the request's row 0
  int tile_begin;  // first row x head of this tile
  int tile_rows;   // valid ones, 1..64
  int key_begin;
  int key_end;      // may be <= key_begin: nothing visible
  int split_index;  // among all splits; -1 when this piece is the whole request
};

template <DType kQuery, DType kCache>
class Worker {
 public:
  using Traits = CacheTraits<kCache>;
  using Layout = SharedLayout<kCache>;
  using Element = typename Traits::Element;
  static constexpr bool kFp8 = kCache == DType::kE4M3;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kThreadsPerKey = kThreads / kKeys;
  static constexpr int kDimParts = Traits::kDimParts;
  static constexpr int kKeyGroups = kWarps / 2 / kDimParts;  // two warps share the rows of a group
  static constexpr int kKeyTiles = kKeys / kKeyGroups / 8;   // n tiles of a warp in S
  static constexpr int kPartSteps = kDecodeQkDim / 16 / kDimParts;  // k16 steps of a part of D

  __device__ Worker(const DecodeParams& params, unsigned char* shared, int stages)
      : p_(params), shared_(shared), base_(shared_address(shared)), stages_(stages) {}

  __device__ void run(const Piece& piece) {
    // The row's state lives in the four threads of the row.
    maximum_ = -INFINITY;
    sum_ = 0.0F;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[m][n][i] = 0.0F;
      }
    }
    key_end_ = piece.key_end;
    table_ = p_.block_table + piece.request * p_.block_table_stride;
    const int blocks =
        piece.key_end > piece.key_begin ? (piece.key_end - piece.key_begin + kKeys - 1) / kKeys : 0;
    __syncthreads();  // the former piece is done with shared memory
    if (stages_ > 1 && blocks > 0) start_copies(piece.key_begin, 0);
    load_query(piece);
    for (int block = 0; block < blocks; ++block) {
      const int key = piece.key_begin + block * kKeys;
      const int stage = stages_ > 1 ? block & 1 : 0;
      if (stages_ == 1) {
        __syncthreads();
        start_copies(key, 0);
      }
      wait_for_copies<0>();
      __syncthreads();  // the block has arrived, and everyone is done with the one before
      if (stages_ > 1 && block + 1 < blocks) start_copies(key + kKeys, stage ^ 1);
      logits(stage, piece.tile_rows);
      __syncthreads();
      const bool rescale = __syncthreads_or(softmax(key));
      accumulate(stage, piece.tile_rows, rescale);
    }
    finish(piece);
  }

 private:
  __device__ float* row_alpha() const {
    return reinterpret_cast<float*>(shared_ + Layout::kRowFloats);
  }
  __device__ float* row_query_scale() const { return row_alpha() + kRows; }
  __device__ float* row_normalizer() const { return row_alpha() + 2 * kRows; }
  __device__ int* row_visible() const {
    return reinterpret_cast<int*>(shared_ + Layout::kRowVisible);
  }
  __device__ float* logits_of(int part, int row) const {
    return reinterpret_cast<float*>(shared_ + Layout::kLogits) +
           (part * kRows + row) * Layout::kLogitPitch;
  }
  __device__ std::uint32_t query_chunk(int row, int chunk) const {
    return base_ + Layout::kQuery + row * kQueryPitch + ((chunk ^ (row & 7)) << 4);
  }
  __device__ std::uint32_t cache_chunk(int stage, int key, int chunk) const {
    return base_ + Layout::kStages + stage * Layout::kStageBytes + key * Traits::kRowBytes +
           ((chunk ^ Traits::swizzle(key)) << 4);
  }
  __device__ std::uint32_t probability_chunk(int row, int chunk) const {
    return base_ + Layout::kProbabilities + row * Layout::kProbabilityPitch + (chunk << 4);
  }

  // kThreadsPerKey threads copy one key. Keys beyond the tile's last visible one become zeros: a
  // NaN in V would survive a probability of zero.
  __device__ void start_copies(int first_key, int stage) {
    const int slot = threadIdx.x / kThreadsPerKey;
    const int key = first_key + slot;
    const bool valid = key < key_end_;
    const auto* source = static_cast<const unsigned char*>(p_.cache);
    if (valid) {
      const int page = table_[key / p_.page_size];
      constexpr int kSize = kFp8 ? 1 : 2;
      source += (page * p_.cache_page_stride + (key % p_.page_size) * p_.cache_row_stride) * kSize;
    }
#pragma unroll
    for (int i = 0; i < kCopiesPerThread; ++i) {
      const int chunk = threadIdx.x % kThreadsPerKey + i * kThreadsPerKey;
      copy_async_16(cache_chunk(stage, slot, chunk), valid ? source + chunk * 16 : source, valid);
    }
    commit_copies();
  }

  __device__ const unsigned char* query_row(const Piece& piece, int row) const {
    const int index = piece.tile_begin + row;
    const std::int64_t token = piece.first_row + index / p_.num_heads;
    constexpr int kSize = kQuery == DType::kE4M3 ? 1 : 2;
    return static_cast<const unsigned char*>(p_.query) +
           (token * p_.query_row_stride + (index % p_.num_heads) * p_.query_head_stride) * kSize;
  }

  __device__ void store_query_chunk(int row, int chunk, const std::uint32_t (&w)[4]) {
    auto* address = shared_ + Layout::kQuery + row * kQueryPitch + ((chunk ^ (row & 7)) << 4);
    *reinterpret_cast<uint4*>(address) = make_uint4(w[0], w[1], w[2], w[3]);
  }

  // Four threads a row; thread `sub` takes groups sub, sub + 4, .. of 16 dims.
  __device__ void load_query(const Piece& piece) {
    const int row = threadIdx.x / 4;
    const int sub = threadIdx.x % 4;
    const bool valid = row < piece.tile_rows;
    const unsigned char* source = valid ? query_row(piece, row) : nullptr;
    const float scale = scale_to_half(source, sub);
    if (sub == 0) {
      row_query_scale()[row] = p_.logit_scale * kLog2E / scale;
      row_visible()[row] =
          valid ? p_.visible[piece.first_row + (piece.tile_begin + row) / p_.num_heads] : 0;
    }
    for (int group = sub; group < kDecodeQkDim / 16; group += 4) {
      std::uint32_t low[4] = {};
      std::uint32_t high[4] = {};
      if (valid) read_query_group(source, group, scale, low, high);
      store_query_chunk(row, 2 * group, low);
      store_query_chunk(row, 2 * group + 1, high);
    }
  }

  // A bf16 query meets f16 codes: each row is scaled by a power of two that puts its largest
  // element into [2^14, 2^15). Exact, but for elements 2^-28 below the largest, which lose bits
  // below 2^-39 of it.
  __device__ float scale_to_half(const unsigned char* source, int sub) const {
    if constexpr (kQuery == kCache) {
      return 1.0F;
    } else {
      std::uint32_t largest = 0;  // of the magnitudes' bits, two bf16 at once
      if (source != nullptr) {
        for (int chunk = sub; chunk < kDecodeQkDim / 8; chunk += 4) {
          const uint4 words = reinterpret_cast<const uint4*>(source)[chunk];
          largest = __vmaxu2(largest, words.x & 0x7FFF7FFFu);
          largest = __vmaxu2(largest, words.y & 0x7FFF7FFFu);
          largest = __vmaxu2(largest, words.z & 0x7FFF7FFFu);
          largest = __vmaxu2(largest, words.w & 0x7FFF7FFFu);
        }
      }
      largest = max(largest >> 16, largest & 0xFFFFu);
      largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
      largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
      const int exponent = static_cast<int>(largest >> 7);  // biased
      if (largest == 0 || exponent == 255) return 1.0F;
      const int scaled = 127 + 14 - (max(exponent, 21) - 127);  // of the scale, biased, <= 247
      return __int_as_float(max(scaled, 1) << 23);
    }
  }

  // 16 dims of a row as two chunks of 16-bit elements in the order the fragments want.
  __device__ void read_query_group(const unsigned char* source, int group, float scale,
                                   std::uint32_t (&low)[4], std::uint32_t (&high)[4]) const {
    if constexpr (kQuery == DType::kE4M3) {
      const uint4 codes = reinterpret_cast<const uint4*>(source)[group];
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[i] = e4m3x2_to_half2(words[i]);
        high[i] = e4m3x2_to_half2(words[i] >> 16);
      }
    } else {
      const uint4 first = reinterpret_cast<const uint4*>(source)[2 * group];
      const uint4 second = reinterpret_cast<const uint4*>(source)[2 * group + 1];
      const std::uint32_t words[8] = {first.x,  first.y,  first.z,  first.w,
                                      second.x, second.y, second.z, second.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kCache == DType::kE4M3) {
          low[i] = scaled_half2(words[2 * i], scale);
          high[i] = scaled_half2(words[2 * i + 1], scale);
        } else {
          low[i] = words[i];
          high[i] = words[i + 4];
        }
      }
    }
  }

  static __device__ std::uint32_t scaled_half2(std::uint32_t bf16_pair, float scale) {
    return pack_pair<__half>(__uint_as_float(bf16_pair << 16) * scale,
                             __uint_as_float(bf16_pair & 0xFFFF0000u) * scale);
  }

  // b[n] of the warp's key tiles for one k16 step.
  __device__ void load_key_fragments(int stage, int first_key, int step,
                                     std::uint32_t (&b)[kKeyTiles][2]) const {
    const int lane = threadIdx.x % 32;
    std::uint32_t r[4];
    if constexpr (kFp8) {
      load_matrices(r, cache_chunk(stage, first_key + lane, step));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        b[n][0] = e4m3x2_to_half2(r[n]);
        b[n][1] = e4m3x2_to_half2(r[n] >> 16);
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        const int key = first_key + 16 * pair + (lane >> 4) * 8 + (lane & 7);
        load_matrices(r, cache_chunk(stage, key, 2 * step + ((lane >> 3) & 1)));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          b[2 * pair + n][0] = r[2 * n];
          b[2 * pair + n][1] = r[2 * n + 1];
        }
      }
    }
  }

  __device__ void logits(int stage, int tile_rows) {
    const int first_row = ((threadIdx.x / 32) & 1) * 32;
    if (first_row + 16 < tile_rows) {
      logits_of_tiles<2>(stage, first_row);
    } else if (first_row < tile_rows) {
      logits_of_tiles<1>(stage, first_row);
    }
  }

  // Straight-line code for a fixed number of row tiles, so that loads run ahead of products.
  template <int kTiles>
  __device__ void logits_of_tiles(int stage, int first_row) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int first_key = (warp >> 1) % kKeyGroups * (kKeys / kKeyGroups);
    const int part = (warp >> 1) / kKeyGroups;
    float s[kTiles][kKeyTiles][4] = {};
#pragma unroll(kPartSteps / 3)
    for (int i = 0; i < kPartSteps; ++i) {
      const int step = part * kPartSteps + i;
      std::uint32_t b[kKeyTiles][2];
      load_key_fragments(stage, first_key, step, b);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        std::uint32_t a[4];
        load_matrices(a, query_chunk(first_row + 16 * m + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) multiply_add<Element>(s[m][n], a, b[n][0], b[n][1]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const int row = first_row + 16 * m + lane / 4;
        const int key = first_key + 8 * n + 2 * (lane % 4);
        *reinterpret_cast<float2*>(logits_of(part, row) + key) =
            make_float2(s[m][n][0], s[m][n][1]);
        *reinterpret_cast<float2*>(logits_of(part, row + 8) + key) =
            make_float2(s[m][n][2], s[m][n][3]);
      }
    }
  }

  // Returns whether this thread's row has a new maximum. Keys are masked by select, so whatever the
  // logits of rows and keys that do not count hold, it does no harm.
  __device__ bool softmax(int first_key) {
    const int row = threadIdx.x / 4;
    const int sub = threadIdx.x % 4;
    const float scale = row_query_scale()[row];
    const int visible = row_visible()[row] - first_key;
    float x[kKeys / 4];
    float largest = maximum_;
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      const int key = 16 * j + 4 * sub;
      float s[4] = {};
#pragma unroll
      for (int part = 0; part < kDimParts; ++part) {
        const float4 of_part = *reinterpret_cast<const float4*>(logits_of(part, row) + key);
        s[0] += of_part.x;
        s[1] += of_part.y;
        s[2] += of_part.z;
        s[3] += of_part.w;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[4 * j + i] = key + i < visible ? s[i] * scale : -INFINITY;
        largest = fmaxf(largest, x[4 * j + i]);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    const bool any = largest != -INFINITY;
    const float alpha = any ? fast_exp2(maximum_ - largest) : 1.0F;
    const float shift = any ? largest - Traits::kOffset : 0.0F;
    float sum = 0.0F;
    unsigned char* out = shared_ + Layout::kProbabilities + row * Layout::kProbabilityPitch;
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        e[i] = fast_exp2(x[4 * j + i] - shift);
        sum += e[i];
      }
      *reinterpret_cast<uint2*>(out + (16 * j + 4 * sub) * 2) =
          make_uint2(pack_pair<Element>(e[0], e[1]), pack_pair<Element>(e[2], e[3]));
    }
    sum_ = sum_ * alpha + sum;
    maximum_ = largest;
    if (sub == 0) row_alpha()[row] = alpha;
    return alpha != 1.0F;
  }

  // b of the warp's 64 dims for 16 keys. Tile 2i and 2i + 1 of e4m3: the even and the odd dims
  // of 16.
  __device__ void load_value_fragments(int stage, int first_key,
                                       std::uint32_t (&b)[kOutTiles][2]) const {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int key = first_key + ((lane >> 3) & 1) * 8 + (lane & 7);
    std::uint32_t r[4];
    if constexpr (kFp8) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        load_matrices_transposed(r, cache_chunk(stage, key, warp * 4 + 2 * pair + (lane >> 4)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // r[i]: keys of half i % 2, dims of group i / 2
          const std::uint32_t sorted = __byte_perm(r[i], 0, 0x3120);
          b[4 * pair + 2 * (i / 2)][i % 2] = e4m3x2_to_half2(sorted);
          b[4 * pair + 2 * (i / 2) + 1][i % 2] = e4m3x2_to_half2(sorted >> 16);
        }
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        load_matrices_transposed(r, cache_chunk(stage, key, warp * 8 + 2 * pair + (lane >> 4)));
#pragma unroll
        for (int i = 0; i < 4; ++i) b[2 * pair + i / 2][i % 2] = r[i];
      }
    }
  }

  __device__ void accumulate(int stage, int tile_rows, bool rescale) {
    if (tile_rows > 32) {
      accumulate_tiles<4>(stage, rescale);
    } else if (tile_rows > 16) {
      accumulate_tiles<2>(stage, rescale);
    } else {
      accumulate_tiles<1>(stage, rescale);
    }
  }

  template <int kTiles>
  __device__ void accumulate_tiles(int stage, bool rescale) {
    const int lane = threadIdx.x % 32;
    if (rescale) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const float upper = row_alpha()[16 * m + lane / 4];
        const float lower = row_alpha()[16 * m + lane / 4 + 8];
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          out_[m][n][0] *= upper;
          out_[m][n][1] *= upper;
          out_[m][n][2] *= lower;
          out_[m][n][3] *= lower;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      std::uint32_t b[kOutTiles][2];
      load_value_fragments(stage, 16 * step, b);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        std::uint32_t a[4];
        load_matrices(a, probability_chunk(16 * m + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) multiply_add<Element>(out_[m][n], a, b[n][0], b[n][1]);
      }
    }
  }

  __device__ void finish(const Piece& piece) {
    const int row = threadIdx.x / 4;
    float sum = sum_ + __shfl_xor_sync(0xFFFFFFFFu, sum_, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const bool whole = piece.split_index < 0;
    if (threadIdx.x % 4 == 0) {
      row_normalizer()[row] = sum > 0.0F || sum != sum ? p_.output_scale / sum : 0.0F;
      if (row < piece.tile_rows) {
        const float lse = sum == 0.0F ? -INFINITY : (maximum_ - Traits::kOffset) * kLn2 + logf(sum);
        *lse_address(piece, row, whole) = lse;
      }
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int r = 16 * m + 8 * lower + lane / 4;
        if (r < piece.tile_rows) store_row(piece, r, whole, row_normalizer()[r], m, lower);
      }
    }
  }

  __device__ float* lse_address(const Piece& piece, int row, bool whole) const {
    const int index = piece.tile_begin + row;
    if (!whole) return p_.partial_lse + partial_row(piece, index);
    return p_.lse + (piece.first_row + index / p_.num_heads) * p_.lse_row_stride +
           (index % p_.num_heads) * p_.lse_head_stride;
  }
  __device__ std::int64_t partial_row(const Piece& piece, int index) const {
    return static_cast<std::int64_t>(piece.split_index) * p_.max_rows_per_request * p_.num_heads +
           index;
  }

  // Neighbouring dims of this lane: four from a pair of e4m3 tiles, two from a bf16 tile.
  __device__ void store_row(const Piece& piece, int row, bool whole, float factor, int m,
                            int lower) {
    const int lane = threadIdx.x % 32;
    const int index = piece.tile_begin + row;
    const int first_dim = (threadIdx.x / 32) * kDimsPerWarp;
    auto* out = static_cast<__nv_bfloat16*>(p_.out) +
                (piece.first_row + index / p_.num_heads) * p_.out_row_stride +
                (index % p_.num_heads) * p_.out_head_stride + first_dim;
    float* partial = whole ? nullptr
                           : static_cast<float*>(p_.partial_out) +
                                 partial_row(piece, index) * kDecodeLatentRank + first_dim;
    // A row that saw nothing gives 0, whatever was accumulated.
    const auto value = [&](int n, int i) {
      return factor == 0.0F ? 0.0F : out_[m][n][2 * lower + i] * factor;
    };
    if constexpr (kFp8) {
#pragma unroll
      for (int group = 0; group < kOutTiles / 2; ++group) {
        const float4 v = make_float4(value(2 * group, 0), value(2 * group + 1, 0),
                                     value(2 * group, 1), value(2 * group + 1, 1));
        const int dim = 16 * group + 4 * (lane % 4);
        if (whole) {
          *reinterpret_cast<uint2*>(out + dim) =
              make_uint2(pack_pair<__nv_bfloat16>(v.x, v.y), pack_pair<__nv_bfloat16>(v.z, v.w));
        } else {
          *reinterpret_cast<float4*>(partial + dim) = v;
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
        const int dim = 8 * n + 2 * (lane % 4);
        if (whole) {
          *reinterpret_cast<std::uint32_t*>(out + dim) =
              pack_pair<__nv_bfloat16>(value(n, 0), value(n, 1));
        } else {
          *reinterpret_cast<float2*>(partial + dim) = make_float2(value(n, 0), value(n, 1));
        }
      }
    }
  }

  const DecodeParams& p_;
  unsigned char* shared_;
  std::uint32_t base_;
  int stages_;
  int key_end_ = 0;
  const std::int32_t* table_ = nullptr;
  float maximum_ = 0.0F;
  float sum_ = 0.0F;
  float out_[kRowTiles][kOutTiles][4];
};

// The largest visible of the tile's rows: no key beyond it is touched.
__device__ inline int tile_visible(const DecodeParams& p, int first_row, int tile_begin,
                                   int tile_rows) {
  int most = 0;
  for (int token = tile_begin / p.num_heads; token <= (tile_begin + tile_rows - 1) / p.num_heads;
       ++token) {
    most = max(most, p.visible[first_row + token]);
  }
  return most;
}

// blockIdx.x is the row tile, blockIdx.y the part.
template <DType kQuery, DType kCache>
__global__ void __launch_bounds__(kThreads, 1)
    generic_decode_kernel(const __grid_constant__ DecodeParams p, int stages) {
  extern __shared__ __align__(128) unsigned char shared[];
  const DecodePart part = p.parts[blockIdx.y];
  if (part.begin_request < 0) return;
  Worker<kQuery, kCache> worker(p, shared, stages);
  for (int request = part.begin_request; request <= part.end_request && request < p.num_requests;
       ++request) {
    Piece piece;
    piece.request = request;
    piece.first_row = p.row_begin[request];
    piece.tile_begin = blockIdx.x * kRows;
    piece.tile_rows =
        min(kRows, (p.row_begin[request + 1] - piece.first_row) * p.num_heads - piece.tile_begin);
    if (piece.tile_rows <= 0) continue;
    const int visible = tile_visible(p, piece.first_row, piece.tile_begin, piece.tile_rows);
    const bool first = request == part.begin_request;
    const bool last = request == part.end_request;
    piece.key_begin = first ? part.begin_block * kDecodeBlockKeys : 0;
    piece.key_end = last ? min(visible, part.end_block * kDecodeBlockKeys) : visible;
    const int first_split = p.num_splits[request];
    const bool whole = p.num_splits[request + 1] - first_split <= 1;
    piece.split_index = whole ? -1 : first_split + (first ? part.begin_split : 0);
    worker.run(piece);
  }
}

}  // namespace mladcp::generic_decode
