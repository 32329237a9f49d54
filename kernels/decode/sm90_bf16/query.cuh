// The query rows of a tile: some of their tiles as fragments in registers, the others in shared
// memory.
#pragma once

#include "kernels/decode/sm90_bf16/shared.cuh"
#include "kernels/decode/sm90_common/wgmma.cuh"

namespace mladcp::sm90_bf16 {

// Steps of S in order, as the pieces of a page arrive: its first half, its rope, its second half.
// Of each half the tiles whose query is in registers come first.
inline constexpr int kHalfSteps = kHalfTiles * kTileSteps;
inline constexpr int kRopeBegin = kHalfSteps;
inline constexpr int kSecondBegin = kRopeBegin + kTileSteps;
static_assert(kSecondBegin + kHalfSteps == kQkSteps);

// Where row n of the tile lies in the query.
__device__ __forceinline__ const char* query_row(const DecodeParams& p,
                                                 const sm90_fp8::Piece& piece, int tile, int n) {
  const int index = tile * Config::kRows + n;
  const int token = index / p.num_heads;
  const int head = index - token * p.num_heads;
  return static_cast<const char*>(p.query) +
         2 * ((piece.row_begin + token) * p.query_row_stride + head * p.query_head_stride);
}

// The query as an operand of S.
struct QueryOperand {
  std::uint32_t q[kQueryRegisterTiles * kTileSteps][4];

  // The first tiles of rows n and n + 8 as A fragments, straight from memory, which leaves their
  // room in shared memory to pages. Rows that do not exist are zeros. A lane loads 8 neighbouring
  // dims of every 32 and then trades for 2 of every 8.
  __device__ __forceinline__ void load(const DecodeParams& p, const sm90_fp8::Piece& piece,
                                       int tile, int n, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool exists = n + 8 * h < piece.num_rows;
      const char* source = query_row(p, piece, tile, exists ? n + 8 * h : 0) + 16 * t;
#pragma unroll
      for (int k = 0; k < kQueryRegisterTiles * kTileSteps; k += 2) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (exists) {
          asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                       : "l"(source + 32 * k)
                       : "memory");
        }
        q[k][h] = v.x;
        q[k][2 + h] = v.y;
        q[k + 1][h] = v.z;
        q[k + 1][2 + h] = v.w;
      }
    }
#pragma unroll
    for (int k = 0; k < kQueryRegisterTiles * kTileSteps; k += 2) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t w[4] = {q[k][h], q[k][2 + h], q[k + 1][h], q[k + 1][2 + h]};
        transpose_quad(w, t);
        q[k][h] = w[0];
        q[k][2 + h] = w[1];
        q[k + 1][h] = w[2];
        q[k + 1][2 + h] = w[3];
      }
    }
  }

  // Steps kBegin..kEnd - 1 of a page, whose halves and rope tile are at the given addresses: 4 a
  // tile, 32 bytes (2 descriptor units) apart.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void issue(float (&s)[32], const Shared& shared, std::uint32_t half0,
                                        std::uint32_t rope, std::uint32_t half1) const {
    const auto descriptor = [](std::uint32_t address) {
      return sm90::matrix_descriptor(address, sm90::Swizzle::k128Bytes);
    };
    const std::uint64_t query = descriptor(shared.query());
    const std::uint64_t key_half[] = {descriptor(half0), descriptor(half1)};
    const std::uint64_t key_rope = descriptor(rope);
    constexpr int kUnits = kTileBytes / 16;
#pragma unroll
    for (int step = kBegin; step < kEnd; ++step) {
      const bool is_rope = step >= kRopeBegin && step < kSecondBegin;
      const int half = step < kRopeBegin ? 0 : 1;
      const int i = (half == 0 ? step : step - kSecondBegin) / kTileSteps;  // tile of the half
      const int k = step % kTileSteps;
      const int tile = is_rope ? kRopeTile : latent_tile(half, i);
      const std::uint64_t key = (is_rope ? key_rope : key_half[half] + i * kUnits) + 2 * k;
      if (tile < kQueryRegisterTiles) {
        sm90::wgmma_bf16(s, q[tile < kQueryRegisterTiles ? tile * kTileSteps + k : 0], key,
                         step > 0);
      } else {
        sm90::wgmma_bf16(s, query + (tile - kQueryRegisterTiles) * kUnits + 2 * k, key, step > 0);
      }
    }
  }
};

// Warps 1..3 of the producer warpgroup: the tiles that stay in shared memory. Rows that do not
// exist are written as zeros.
__device__ __forceinline__ void fetch_queries(const DecodeParams& p, const Shared& shared,
                                              int tile) {
  constexpr int kWarps = sm90_fp8::kQueryWarps;
  const int lane = threadIdx.x & 31;
  const int warp = (threadIdx.x >> 5) % 4 - 1;
  sm90_fp8::PieceCursor piece_at;
  sm90_fp8::SingleCursor query_at;
  sm90_fp8::Piece piece;
  while (sm90_fp8::next_piece(shared, piece_at, piece)) {
    if (piece.num_pages == 0) continue;
    sm90::barrier_wait(shared.query_empty(), query_at.parity() ^ 1);
    query_at.advance();
    // Lane i looks up where the warp's i-th row lies.
    static_assert(Config::kRows <= 32 * kWarps);
    const int own_row = warp + kWarps * lane;
    const char* own = query_row(p, piece, tile, own_row < piece.num_rows ? own_row : 0);
    const std::int64_t offset = own - static_cast<const char*>(p.query);
#pragma unroll 1
    for (int row = warp, i = 0; row < Config::kRows; row += kWarps, ++i) {
      const char* source = static_cast<const char*>(p.query) + __shfl_sync(~0U, offset, i) +
                           kQueryRegisterTiles * kTileChunk;
      // 8 chunks of 16 bytes a tile.
      for (int chunk = lane; chunk < kQueryTiles * 8; chunk += 32) {
        sm90::copy_async_16(shared.query() + (chunk >> 3) * (Config::kRows * kTileChunk) +
                                sm90_fp8::swizzled_128(row, chunk & 7),
                            source + chunk * 16, row < piece.num_rows);
      }
    }
    sm90::copy_async_wait_all();
    sm90::fence_proxy_async();
    sm90::barrier_arrive(shared.query_full());
  }
}

}  // namespace mladcp::sm90_bf16
