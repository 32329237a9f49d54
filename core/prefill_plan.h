// A chunked prefill's plan for one rank, as data. Faults are changed plans; kernels read it from
// device tensors (PrefillWorkspace::load).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/chunk_plan.h"
#include "core/decode_plan.h"

namespace mladcp {

// One request of a step: `context` positions are cached already, `new_tokens` follow them.
struct PrefillRequest {
  std::int64_t context = 0;
  std::int64_t new_tokens = 0;
};

// This rank's part of the cache.
struct CacheShard {
  std::int64_t rank = 0;
  std::int64_t pages = 0;
};

struct PrefillPlan {
  std::vector<std::int64_t> position;  // [T] global position of the row's token
  std::vector<std::int64_t> slots;     // [T] where this rank stores the row's token, or kNoSlot
  std::vector<std::int32_t> cu_rows;  // [B + 1] new rows of request b: cu_rows[b] .. cu_rows[b+1]-1
  std::int64_t max_rows = 0;          // most new rows of one request
  BlockTable block_table;             // [B, columns]
  ChunkPlan context;

  std::int64_t rows() const { return static_cast<std::int64_t>(slots.size()); }
  std::int64_t requests() const { return context.requests(); }
};

// The same on every rank, but for the slots. Throws InvalidArgument naming request, column and
// remedy: what build_chunk_plan and check_block_table refuse, negative new tokens, more rows than
// int32 holds, a table without columns for the new tokens.
PrefillPlan plan_prefill(const ChunkGeometry& geometry, const CacheShard& shard,
                         std::span<const PrefillRequest> requests, const BlockTable& block_table);

}  // namespace mladcp
