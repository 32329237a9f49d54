// The producer warpgroup: one warp turns the schedule into pieces and streams their pages by TMA,
// three warps fetch the query rows of each piece.
#pragma once

#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_fp8 {

// Loads that other blocks cannot change during the kernel, but an upstream kernel may have written
// just before: ordinary cached loads, not the non-coherent path.
__device__ __forceinline__ int load_int(const std::int32_t* p) {
  int v;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

template <class C>
__device__ __forceinline__ void publish_piece(const Shared<C>& shared, PieceCursor& at,
                                              const Piece& piece) {
  sm90::barrier_wait(shared.piece_empty(at.slot()), at.parity() ^ 1);
  const std::uint32_t address = shared.piece(at.slot());
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(piece.num_pages),
               "r"(piece.num_keys), "r"(piece.first_key), "r"(piece.row_begin)
               : "memory");
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address + 16), "r"(piece.num_rows),
               "r"(piece.split)
               : "memory");
  sm90::barrier_arrive(shared.piece_full(at.slot()));
  at.advance();
}

// The page of a block, 0 past the end of the table row. `page_shift`: log2 of blocks a page.
__device__ __forceinline__ int table_entry(const DecodeParams& p, int request, int block,
                                           int page_shift) {
  const std::int64_t column = block >> page_shift;
  if (column >= p.block_table_stride) return 0;
  return load_int(p.block_table + request * p.block_table_stride + column);
}

// All lanes of one warp.
template <class C>
__device__ __forceinline__ void stream_pages(const DecodeParams& p, const Shared<C>& shared,
                                             const CUtensorMap* latent_map,
                                             const CUtensorMap* rope_map, int part_index, int tile,
                                             int page_shift) {
  const int lane = threadIdx.x & 31;
  const int* part = reinterpret_cast<const int*>(p.parts + part_index);
  const int field = lane < 5 ? load_int(part + lane) : 0;
  int request = __shfl_sync(~0U, field, 0);
  const int end_request = request < 0 ? -2 : __shfl_sync(~0U, field, 2);
  // Where the first piece begins; the others begin at block 0, split 0.
  int first_block = __shfl_sync(~0U, field, 1);
  int split = __shfl_sync(~0U, field, 4);

  PieceCursor piece_at;
  RingCursor<C::kStages> page_at;
#pragma unroll 1
  for (; request <= end_request; ++request, first_block = 0, split = 0) {
    int entry = table_entry(p, request, first_block + lane, page_shift);
    // One load a lane, so that they travel together.
    const std::int32_t* source = lane < 2 ? p.row_begin : lane < 4 ? p.num_splits : p.lengths;
    const int fact = lane < 5 ? load_int(source + (request + (lane < 4 ? lane & 1 : 0))) : 0;
    int block = first_block;
    int end_block;
    {
      Piece piece;
      piece.row_begin = __shfl_sync(~0U, fact, 0);
      const int rows =
          (__shfl_sync(~0U, fact, 1) - piece.row_begin) * p.num_heads - tile * C::kRows;
      if (rows <= 0) continue;
      piece.num_rows = min(rows, C::kRows);
      const int split_begin = __shfl_sync(~0U, fact, 2);
      piece.split = __shfl_sync(~0U, fact, 3) - split_begin > 1 ? split_begin + split : -1;
      const int length = __shfl_sync(~0U, fact, 4);
      end_block = (length + kPageKeys - 1) / kPageKeys;
      if (request == end_request) end_block = min(end_block, __shfl_sync(~0U, field, 3));
      piece.num_pages = max(0, end_block - block);
      piece.first_key = block * kPageKeys;
      piece.num_keys = length - piece.first_key;
      if (lane == 0) publish_piece(shared, piece_at, piece);
    }

#pragma unroll 1
    for (; block < end_block; ++block) {
      const int nth = (block - first_block) & 31;
      const int page = __shfl_sync(~0U, entry, nth);
      if (nth == 31) entry = table_entry(p, request, block + 1 + lane, page_shift);
      if (lane == 0) {
        const int row = (block & ((1 << page_shift) - 1)) * kPageKeys;
        const std::uint32_t full = shared.page_full(page_at.slot());
        const std::uint32_t stage = shared.stage(page_at.slot());
        sm90::barrier_wait(shared.page_empty(page_at.slot()), page_at.parity() ^ 1);
        sm90::barrier_arrive_expect_bytes(full, kPageBytes);
        sm90::tma_load_4d(stage, latent_map, 0, row, 0, page, full, sm90::kEvictFirst);
        sm90::tma_load_3d(stage + kRopeTileOffset, rope_map, 0, row, page, full, sm90::kEvictFirst);
      }
      page_at.advance();
    }
  }
  if (lane == 0) {
    Piece end{};
    end.num_pages = -1;
    publish_piece(shared, piece_at, end);
  }
}

// Warps 1..3 of the producer warpgroup. Rows that do not exist are written as zeros.
template <class C>
__device__ __forceinline__ void fetch_queries(const DecodeParams& p, const Shared<C>& shared,
                                              int tile) {
  const int lane = threadIdx.x & 31;
  const int warp = (threadIdx.x >> 5) % 4 - 1;
  PieceCursor piece_at;
  SingleCursor query_at;
  Piece piece;
  while (next_piece(shared, piece_at, piece)) {
    if (piece.num_pages == 0) continue;
    sm90::barrier_wait(shared.query_empty(), query_at.parity() ^ 1);
    query_at.advance();
#pragma unroll 1
    for (int row = warp; row < C::kRows; row += kQueryWarps) {
      const bool valid = row < piece.num_rows;
      const int index = tile * C::kRows + (valid ? row : 0);
      const int token = index / p.num_heads;
      const int head = index - token * p.num_heads;
      const char* source = static_cast<const char*>(p.query) +
                           (piece.row_begin + token) * p.query_row_stride +
                           head * p.query_head_stride;
      const std::uint32_t latent =
          shared.query() + (lane >> 3) * (C::kRows * 128) + swizzled_128(row, lane & 7);
      sm90::copy_async_16(latent, source + lane * 16, valid);
      if (lane < 4) {
        sm90::copy_async_16(shared.query() + C::kQueryRopeTile + swizzled_64(row, lane),
                            source + kRopeOffset + lane * 16, valid);
      }
    }
    sm90::copy_async_wait_all();
    sm90::fence_proxy_async();
    __syncwarp();
    if (sm90::elect_one()) sm90::barrier_arrive(shared.query_full());
  }
}

}  // namespace mladcp::sm90_fp8
