// The producer warpgroup: one warp turns the schedule into pieces and streams their pages by TMA,
// three warps fetch the query rows of each piece.
#pragma once

#include <climits>
#include <cstddef>

#include "kernels/decode/sm90_fp8/shared.cuh"

namespace mladcp::sm90_fp8 {

// Loads that other blocks cannot change during the kernel, but an upstream kernel may have written
// just before: ordinary cached loads, not the non-coherent path.
__device__ __forceinline__ int load_int(const std::int32_t* p) {
  int v;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// What an upstream kernel may be writing right now: past L1, so that no later load meets an old
// line there.
__device__ __forceinline__ int peek_int(const std::int32_t* p) {
  int v;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// The page of a block, 0 past the end of the table row. `page_shift`: log2 of blocks a page.
__device__ __forceinline__ int table_entry(const DecodeParams& p, int request, int block,
                                           int page_shift) {
  const int column = block >> page_shift;
  // The launch refuses tables of 2^31 entries and more.
  const int row = request * static_cast<int>(p.block_table_stride);
  return column < p.block_table_columns ? load_int(p.block_table + (row + column)) : 0;
}

inline constexpr int kUsedPartFields = 5;  // of DecodePart, one a lane

// Field `lane` of the part's record before the upstream grids have completed. They may still write
// the schedule, so it is a guess, good for addresses of loads that are checked or that nobody uses.
__device__ __forceinline__ int guess_part(const DecodeParams& p, int part_index) {
  const int lane = sm90::thread_index() & 31;
  return lane < kUsedPartFields
             ? peek_int(reinterpret_cast<const int*>(p.parts + part_index) + lane)
             : 0;
}

// Request and block where a guessed part begins, made safe to compute addresses with: a lane's
// number may be added to the block.
struct PartStart {
  int request;
  int block;
};
__device__ __forceinline__ PartStart guessed_start(const DecodeParams& p, int guess) {
  const int request = __shfl_sync(~0U, guess, 0);
  const int block = __shfl_sync(~0U, guess, 1);
  return {max(0, min(request, p.num_requests - 1)), max(0, min(block, INT_MAX - 31))};
}

// Brings a part's first page to L2, and what lists its pages, while the upstream grids finish: the
// memory would idle meanwhile. All lanes of one warp of the part's first row tile. A wrong guess
// costs a read, and prefetch(row in page, page) of a page outside the cache does nothing.
template <class Prefetch>
__device__ __forceinline__ void prefetch_first_page(const DecodeParams& p, int guess,
                                                    int page_shift, const Prefetch& prefetch) {
  const auto [request, block] = guessed_start(p, guess);
  const int lane = sm90::thread_index() & 31;
  // All lanes look: the entries behind the first will be needed soon.
  const int column = (block + lane) >> page_shift;
  const bool listed = column < p.block_table_columns;
  const int page = listed ? peek_int(p.block_table + (request * p.block_table_stride + column)) : 0;
  int blocks = (peek_int(p.lengths + request) + kPageKeys - 1) / kPageKeys;
  if (request == __shfl_sync(~0U, guess, 2)) blocks = min(blocks, __shfl_sync(~0U, guess, 3));
  if (lane == 0 && listed && block < blocks) {
    prefetch((block & ((1 << page_shift) - 1)) * kPageKeys, page);
  }
  __syncwarp();
}

__device__ __forceinline__ void store_field(std::uint32_t piece, std::size_t offset, int value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(piece + static_cast<std::uint32_t>(offset)),
               "r"(value)
               : "memory");
}

// The pace of a CTA's pages, where every CTA reads pages of its own. Left to themselves some CTAs
// get their pages sooner than others, by the luck of the addresses, and when they have ended the
// memory idles behind those that lag. So each asks for a page no sooner than it is due by a clock
// that all of them share, and one that is late may have more pages in flight. It moves copies in
// time, nothing else: a CTA waits for the clock, never for another CTA.
class Pace {
 public:
  // `page_ns`: how long the memory takes for a page of one part, 0: no pace.
  __device__ Pace(const DecodeParams& p, float page_ns)
      : parts_(p.num_parts), page_ns_(page_ns), due_(now_ns() - kHeadStartNs) {
    // Parts without work are the last ones.
    const int lane = sm90::thread_index() & 31;
    last_requests_ = load_int(&p.parts[max(0, p.num_parts - 1 - lane)].begin_request);
  }

  // Waits until the next page is due, at most as long as the memory takes for a page of every part;
  // whether it is late. All lanes of one warp.
  __device__ __forceinline__ bool wait() {
    const unsigned idle = __ballot_sync(~0U, last_requests_ < 0);
    // With that many idle parts the walks are too short for anybody to lag.
    if (page_ns_ == 0.0F || idle == ~0U || pages_ == kPages) return false;
    ++pages_;
    int late;
    do {
      late = static_cast<int>(now_ns() - due_);
      // Nothing is due so far ahead: a CTA that stood still for seconds sees the clock come round.
    } while (late < 0 && late > -kFarNs);
    due_ += static_cast<std::uint32_t>(static_cast<float>(parts_ - __popc(idle)) * page_ns_);
    return late > kLateNs;
  }

 private:
  static constexpr std::uint32_t kHeadStartNs = 500;
  static constexpr int kLateNs = 600;
  static constexpr int kFarNs = 1'000'000;
  static constexpr int kPages = 64;  // of a longer walk the wait costs more than it evens out

  static __device__ __forceinline__ std::uint32_t now_ns() {
    std::uint32_t t;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t));
    return t;
  }

  int parts_;
  float page_ns_;
  std::uint32_t due_;
  int pages_ = 0;
  int last_requests_;  // of the last 32 parts, one a lane
};

// Starts copies of C::kStageBytes into the next stage of the ring, once that is free and fewer than
// `in_flight` are on their way: load(stage, barrier), by lane 0.
template <class C, class Load>
__device__ __forceinline__ void fill_stage(const Shared<C>& shared, RingCursor<C::kStages>& at,
                                           const Load& load, int in_flight = C::kStagesInFlight) {
  if ((sm90::thread_index() & 31) == 0) {
    const std::uint32_t full = shared.page_full(at.slot());
    const std::uint32_t stage = shared.stage(at.slot());
    sm90::barrier_wait(shared.page_empty(at.slot()), at.parity() ^ 1);
    // More in flight would only queue at the memory, before those of CTAs that lag.
    const int landed = at.slot() - in_flight;
    sm90::barrier_wait(shared.page_full(landed < 0 ? landed + C::kStages : landed),
                       landed < 0 ? at.parity() ^ 1 : at.parity());
    sm90::barrier_arrive_expect_bytes(full, C::kStageBytes);
    load(stage, full);
  }
  at.advance();
}

// All lanes of one warp. Written for 24 registers: fields of a piece are stored as they are known.
// deliver(row in page, page), which all lanes call for every page in turn, starts its copies as
// soon as there is room.
template <class C, class Deliver>
__device__ __forceinline__ void stream_pages(const DecodeParams& p, const Shared<C>& shared,
                                             int part_index, int guess, int tile, int page_shift,
                                             Deliver&& deliver) {
  const auto lane = [] { return sm90::thread_index() & 31; };
  // One load a lane, so that they travel together: two row bounds, two split bounds, the length.
  const auto request_fact = [&](int request) {
    const std::int32_t* source = lane() < 2 ? p.row_begin : lane() < 4 ? p.num_splits : p.lengths;
    return lane() < 5 ? load_int(source + (request + (lane() < 4 ? lane() & 1 : 0))) : 0;
  };
  // The part and, where the guess says, its first request: one trip to memory for both.
  const int field = lane() < kUsedPartFields
                        ? load_int(reinterpret_cast<const int*>(p.parts + part_index) + lane())
                        : 0;
  const PartStart start = guessed_start(p, guess);
  int entry = table_entry(p, start.request, start.block + lane(), page_shift);
  int fact = request_fact(start.request);
  bool known = __all_sync(~0U, field == guess);
  PieceCursor piece_at;
  int request = __shfl_sync(~0U, field, 0);
  if (request < 0) request = 0x7FFFFFFF;
#pragma unroll 1
  for (; request <= __shfl_sync(~0U, field, 2); ++request) {
    // The first piece may begin inside its request, the last may end inside.
    const bool first = request == __shfl_sync(~0U, field, 0);
    const int first_block = first ? __shfl_sync(~0U, field, 1) : 0;
    if (!known) {
      entry = table_entry(p, request, first_block + lane(), page_shift);
      fact = request_fact(request);
    }
    known = false;
    const int row_begin = __shfl_sync(~0U, fact, 0);
    const int rows = (__shfl_sync(~0U, fact, 1) - row_begin) * p.num_heads - tile * C::kRows;
    // All tiles of a cluster walk the same pieces, also where only the first has rows.
    if (rows + tile % C::kClusterTiles * C::kRows <= 0) continue;

    const std::uint32_t piece = shared.piece(piece_at.slot());
    sm90::barrier_wait(shared.piece_empty(piece_at.slot()), piece_at.parity() ^ 1);
    if (lane() == 0) {
      store_field(piece, offsetof(Piece, row_begin), row_begin);
      store_field(piece, offsetof(Piece, num_rows), max(0, min(rows, C::kRows)));
      store_field(piece, offsetof(Piece, first_key), first_block * kPageKeys);
    }
    const int split_begin = __shfl_sync(~0U, fact, 2);
    const bool is_split = __shfl_sync(~0U, fact, 3) - split_begin > 1;
    const int split = split_begin + (first ? __shfl_sync(~0U, field, 4) : 0);
    if (lane() == 0) store_field(piece, offsetof(Piece, split), is_split ? split : -1);
    const int keys = __shfl_sync(~0U, fact, 4) - first_block * kPageKeys;
    int pages_left = (keys + kPageKeys - 1) / kPageKeys;
    if (request == __shfl_sync(~0U, field, 2)) {
      pages_left = min(pages_left, __shfl_sync(~0U, field, 3) - first_block);
    }
    if (lane() == 0) {
      store_field(piece, offsetof(Piece, num_keys), keys);
      store_field(piece, offsetof(Piece, num_pages), max(0, pages_left));
      sm90::barrier_arrive(shared.piece_full(piece_at.slot()));
    }
    piece_at.advance();

    int block = first_block;
    int nth = 0;
#pragma unroll 1
    for (; pages_left > 0; --pages_left) {
      const int page = __shfl_sync(~0U, entry, nth);
      const auto row_in_page = [&](int b) { return (b & ((1 << page_shift) - 1)) * kPageKeys; };
      const int row = row_in_page(block);
      ++block;
      if (++nth == 32) {
        nth = 0;
        entry = table_entry(p, request, block + lane(), page_shift);
      }
      deliver(row, page);
    }
  }
  sm90::barrier_wait(shared.piece_empty(piece_at.slot()), piece_at.parity() ^ 1);
  if (lane() == 0) {
    store_field(shared.piece(piece_at.slot()), offsetof(Piece, num_pages), -1);
    sm90::barrier_arrive(shared.piece_full(piece_at.slot()));
  }
}

// Warps 1..3 of the producer warpgroup, where tiles of query rows are boxes. load(barrier, head,
// query row) starts the copies of a tile, kBytes in all. Rows behind the request's are the next
// request's, or zeros: nobody reads their output.
template <class C, int kBytes, class Load>
__device__ __forceinline__ void request_queries(const DecodeParams& p, const Shared<C>& shared,
                                                int tile, const Load& load) {
  const bool loads = (sm90::thread_index() >> 5) % 4 == 1;
  PieceCursor piece_at;
  SingleCursor query_at;
  Piece piece;
  while (next_piece(shared, piece_at, piece)) {
    if (piece.num_pages == 0) continue;
    sm90::barrier_wait(shared.query_empty(), query_at.parity() ^ 1);
    query_at.advance();
    __syncwarp();
    if (loads && sm90::elect_one()) {
      const int token = tile * C::kRows / p.num_heads;
      sm90::barrier_arrive_expect_bytes(shared.query_full(), kBytes);
      load(shared.query_full(), tile * C::kRows - token * p.num_heads, piece.row_begin + token);
    } else {
      sm90::barrier_arrive(shared.query_full());
    }
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
    // Lane i looks up where the warp's i-th row lies: a division for each row in turn would take
    // longer than the copies.
    static_assert(C::kRows <= 32 * kQueryWarps);
    const int own_row = warp + kQueryWarps * lane;
    const int index = tile * C::kRows + (own_row < piece.num_rows ? own_row : 0);
    const int token = index / p.num_heads;
    const int head = index - token * p.num_heads;
    const std::int64_t offset =
        (piece.row_begin + token) * p.query_row_stride + head * p.query_head_stride;
    const char* source = static_cast<const char*>(p.query) + lane * 16;
#pragma unroll 1
    for (int row = warp, i = 0; row < C::kRows; row += kQueryWarps, ++i) {
      const bool valid = row < piece.num_rows;
      const char* from = source + __shfl_sync(~0U, offset, i);
      const std::uint32_t latent =
          shared.query() + (lane >> 3) * (C::kRows * 128) + swizzled_128(row, lane & 7);
      sm90::copy_async_16(latent, from, valid);
    }
    // The rope parts of eight rows at a time.
#pragma unroll 1
    for (int i = lane >> 2; warp + kQueryWarps * (i & ~7) < C::kRows; i += 8) {
      const int row = warp + kQueryWarps * i;
      const char* from = static_cast<const char*>(p.query) + __shfl_sync(~0U, offset, i & 31) +
                         kRopeOffset + (lane & 3) * 16;
      if (row < C::kRows) {
        sm90::copy_async_16(shared.query() + C::kQueryRopeTile + swizzled_64(row, lane & 3), from,
                            row < piece.num_rows);
      }
    }
    sm90::copy_async_wait_all();
    sm90::fence_proxy_async();
    sm90::barrier_arrive(shared.query_full());
  }
}

}  // namespace mladcp::sm90_fp8
