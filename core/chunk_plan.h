// Chunk planner: how a sharded, cached context is walked in pieces that fit a workspace. Pure
// functions, data out; the same plan on every rank.
//
// A chunk takes (start, length) positions of some requests: greedy, requests in order, a request
// cut only when its rest does not fit, at multiples of lcm(page, V). With padded_rows of
// kv_sharding.h
//   seq_starts[s]               = padded_rows(start)                  local rows already done
//   padded_len[s]               = padded_rows(start + length) - padded_rows(start)
//   padded_local_cu_seq_lens    = exclusive prefix sum of padded_len
//   padded_local_token_to_seq   = request index repeated padded_len times
//   toks                        = sum padded_len     equal on all ranks, <= workspace_rows / N
//   real_lengths[r][s]          = min(max(0, local_length(context, r) - seq_starts[s]),
//   padded_len[s])
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/decode_plan.h"
#include "core/kv_sharding.h"

namespace mladcp {

// What a plan is made for. One rank keeps everything, so with N == 1 the interleave has no meaning:
// the plan then takes it as 1, and has no padding.
struct ChunkGeometry {
  KvSharding sharding;
  std::int64_t page_size = 64;      // local tokens
  std::int64_t workspace_rows = 0;  // global rows a chunk may take, padding included

  std::int64_t local_rows() const { return workspace_rows / sharding.world_size; }
  // Positions of a request may be cut at multiples of this: lcm(page, V).
  std::int64_t cut() const;
};

// Throws InvalidArgument naming field and remedy: sizes below 1, page % I != 0, a workspace that is
// below lcm(page, V), no multiple of N or beyond int32.
void validate(const ChunkGeometry& geometry);

// Positions start .. start + length - 1 of one request's context.
struct ContextPiece {
  std::int64_t request = 0;
  std::int64_t start = 0;
  std::int64_t length = 0;

  friend bool operator==(const ContextPiece& a, const ContextPiece& b) = default;
};

// B requests, N ranks. int32, because these go to kernels; the planner refuses what does not fit.
struct ContextChunk {
  std::vector<ContextPiece> pieces;                    // requests rising, none empty
  std::int64_t toks = 0;                               // local rows of every rank, padding included
  std::vector<std::int32_t> seq_starts;                // [B]; 0 for a request not in this chunk
  std::vector<std::int32_t> padded_local_cu_seq_lens;  // [B + 1]
  std::vector<std::int32_t> padded_local_token_to_seq;  // [toks]
  std::vector<std::int32_t> real_lengths;               // [N, B]
  std::vector<std::int32_t> cu_seq_lens;                // [B + 1] over reorganised rows
  // [cu_seq_lens[B]] reorganised row i is gathered row source_rows[i]: requests in order, inside a
  // request ranks in order (not positions), inside a rank local rows in order; no padding.
  std::vector<std::int32_t> source_rows;
};

struct ChunkPlan {
  ChunkGeometry geometry;
  std::vector<std::int64_t> contexts;  // [B]
  std::vector<ContextChunk> chunks;    // empty when every context is

  std::int64_t requests() const { return static_cast<std::int64_t>(contexts.size()); }
};

// Throws InvalidArgument naming field, request and remedy: sizes below 1, page % I != 0, a
// workspace that is below lcm(page, V), no multiple of N or beyond int32, a negative context, one
// whose local rows pass int32.
ChunkPlan build_chunk_plan(std::span<const std::int64_t> contexts, const ChunkGeometry& geometry);

// What a gathered row, 0 <= row < N * toks, of a chunk is.
struct GatheredRow {
  std::int64_t rank = 0;
  std::int64_t request = 0;
  std::int64_t local_row = 0;  // in the rank's cache of that request
  std::int64_t position = 0;   // in the request's context
  bool padding = false;        // past the context: no such token, the row may hold anything
};

GatheredRow gathered_row(const ChunkPlan& plan, const ContextChunk& chunk, std::int64_t row);
std::string describe(const GatheredRow& row);  // "rank 2 request 0 position 13 (local row 3)"

// Throws InvalidArgument naming request and column when the plan reads past the table, or when an
// entry it uses is not one of the cache's `pages` pages. Other entries may be anything.
void check_block_table(const ChunkPlan& plan, const BlockTable& table, std::int64_t pages);

}  // namespace mladcp
