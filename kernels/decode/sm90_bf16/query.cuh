// The query rows of a tile: some of their tiles as fragments in registers, the others in shared
// memory.
#pragma once

#include "kernels/decode/sm90_bf16/shared.cuh"
#include "kernels/decode/sm90_common/wgmma.cuh"

namespace mladcp::sm90_bf16 {

// Where row n of the tile lies in the query.
__device__ __forceinline__ const char* query_row(const DecodeParams& p,
                                                 const sm90_fp8::Piece& piece, int tile, int n) {
  const int index = tile * kTileRows + n;
  const int token = index / p.num_heads;
  const int head = index - token * p.num_heads;
  return static_cast<const char*>(p.query) +
         2 * ((piece.row_begin + token) * p.query_row_stride + head * p.query_head_stride);
}

// The query as an operand of S.
template <class C>
struct QueryOperand {
  std::uint32_t q[kQueryRegisterTiles * kTileSteps][4];

  // Some tiles of rows n and n + 8 as A fragments, straight from memory, which leaves their room in
  // shared memory to pages. Rows that do not exist are zeros. A lane loads 8 neighbouring
  // dims of every 32 and then trades for 2 of every 8.
  __device__ __forceinline__ void load(const DecodeParams& p, const sm90_fp8::Piece& piece,
                                       int tile, int n, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool exists = n + 8 * h < piece.num_rows;
      const char* source = query_row(p, piece, tile, exists ? n + 8 * h : 0) +
                           C::kFirstRegisterTile * kTileChunk + 16 * t;
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

  // The steps of one place of S, whose tile is at `key`; 32 bytes (2 descriptor units) apart.
  __device__ __forceinline__ void issue(float (&s)[32], const Shared<C>& shared, int place,
                                        std::uint32_t key) const {
    const auto descriptor = [](std::uint32_t address) {
      return sm90::matrix_descriptor(address, sm90::Swizzle::k128Bytes);
    };
    const int tile = C::tile_at(place);
    const int in_registers = tile - C::kFirstRegisterTile;
    const int in_shared = tile - C::kFirstSharedTile;
#pragma unroll
    for (int k = 0; k < kTileSteps; ++k) {
      if (in_registers >= 0 && in_registers < kQueryRegisterTiles) {
        sm90::wgmma_bf16(s, q[in_registers * kTileSteps + k], descriptor(key) + 2 * k,
                         place + k > 0);
      } else {
        sm90::wgmma_bf16(s, descriptor(shared.query() + in_shared * kTileBytes) + 2 * k,
                         descriptor(key) + 2 * k, place + k > 0);
      }
    }
  }
};

// Warps 1..3 of the producer warpgroup: the tiles that stay in shared memory. Rows that do not
// exist are written as zeros.
template <class C>
__device__ __forceinline__ void fetch_queries(const DecodeParams& p, const Shared<C>& shared,
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
    static_assert(C::kRows <= 32 * kWarps);
    const int own_row = warp + kWarps * lane;
    const char* own = query_row(p, piece, tile, own_row < piece.num_rows ? own_row : 0);
    const std::int64_t offset = own - static_cast<const char*>(p.query);
#pragma unroll 1
    for (int row = warp, i = 0; row < C::kRows; row += kWarps, ++i) {
      const char* source = static_cast<const char*>(p.query) + __shfl_sync(~0U, offset, i) +
                           C::kFirstSharedTile * kTileChunk;
      // 8 chunks of 16 bytes a tile.
      for (int chunk = lane; chunk < kQueryTiles * 8; chunk += 32) {
        sm90::copy_async_16(shared.query() + (chunk >> 3) * (C::kRows * kTileChunk) +
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
