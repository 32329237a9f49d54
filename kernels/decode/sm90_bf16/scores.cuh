// S = Q K^T and the query's way into shared memory.
#pragma once

#include "kernels/decode/sm90_bf16/config.h"
#include "kernels/decode/sm90_fp8/softmax.cuh"

namespace mladcp::sm90_bf16 {

// The query as an operand of S: most steps in registers, which leaves shared memory to the others.
struct QueryOperand {
  static constexpr int kSteps = kQkSteps;
  static constexpr bool kKeepsBuffer = true;
  static constexpr int kRegisterSteps = Config::kQueryRegisterSteps;

  std::uint32_t q[kRegisterSteps][4];

  // ldmatrix gives the A fragment as it is: rows +0 / +8, then the second 16 bytes of both.
  __device__ __forceinline__ void load(const sm90_fp8::Shared<Config>& shared, int warp, int lane,
                                       bool) {
    const int row = 16 * warp + (lane & 15);
    const int chunk = lane >> 4;
#pragma unroll
    for (int k = 0; k < kRegisterSteps; ++k) {
      sm90::load_matrix_x4(q[k], shared.query() + (k / 4) * kTileBytes +
                                     sm90_fp8::swizzled_128(row, 2 * (k % 4) + chunk));
    }
  }

  // Steps kBegin..kEnd - 1 for the page in `stage`: 4 a tile, 32 bytes (2 descriptor units) apart.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void issue(float (&s)[32], const sm90_fp8::Shared<Config>& shared,
                                        int stage) const {
    const std::uint64_t key =
        sm90::matrix_descriptor(shared.stage(stage), sm90::Swizzle::k128Bytes);
    const std::uint64_t query = sm90::matrix_descriptor(shared.query(), sm90::Swizzle::k128Bytes);
#pragma unroll
    for (int k = kBegin; k < kEnd; ++k) {
      const int at = (k / 4) * (kTileBytes / 16) + (k % 4) * 2;
      if (k < kRegisterSteps) {
        sm90::wgmma_bf16(s, q[k < kRegisterSteps ? k : 0], key + at, k > 0);
      } else {
        sm90::wgmma_bf16(s, query + at, key + at, true);
      }
    }
  }
};

// Warps 1..3 of the producer warpgroup. Rows that do not exist are written as zeros.
__device__ __forceinline__ void fetch_queries(const DecodeParams& p,
                                              const sm90_fp8::Shared<Config>& shared, int tile) {
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
    const int index = tile * Config::kRows + (own_row < piece.num_rows ? own_row : 0);
    const int token = index / p.num_heads;
    const int head = index - token * p.num_heads;
    const std::int64_t offset =
        2 * ((piece.row_begin + token) * p.query_row_stride + head * p.query_head_stride);
#pragma unroll 1
    for (int row = warp, i = 0; row < Config::kRows; row += kWarps, ++i) {
      const char* source = static_cast<const char*>(p.query) + __shfl_sync(~0U, offset, i);
      // 72 chunks of 16 bytes, 8 a tile.
      for (int chunk = lane; chunk < kTiles * 8; chunk += 32) {
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
