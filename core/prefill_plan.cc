#include "core/prefill_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// Counts new rows and refuses what cannot be planned, before any table entry is read.
void check_requests(std::span<const PrefillRequest> requests) {
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < requests.size(); ++b) {
    const std::int64_t added = requests[b].new_tokens;
    if (added < 0) {
      throw InvalidArgument("new tokens of request " + std::to_string(b) + " = " +
                            std::to_string(added) + ": must not be negative; 0 means none");
    }
    if (added > kMaxInt32 - rows) {
      throw InvalidArgument("new tokens of request " + std::to_string(b) + " = " +
                            std::to_string(added) +
                            ": the step's rows pass int32; split the batch");
    }
    rows += added;
  }
}

// Columns and pages the new tokens are stored in.
void check_new_columns(std::size_t b, const PrefillRequest& request, const ChunkGeometry& geometry,
                       const BlockTable& table, std::int64_t pages) {
  if (request.new_tokens == 0) return;
  const std::int64_t span = geometry.page_size * geometry.sharding.world_size;
  const std::int64_t last = (request.context + request.new_tokens - 1) / span;
  if (last >= table.columns) {
    throw InvalidArgument("block_table columns = " + std::to_string(table.columns) +
                          ": the new tokens of request " + std::to_string(b) + " reach column " +
                          std::to_string(last) + "; give at least " + std::to_string(last + 1) +
                          " columns");
  }
  for (std::int64_t c = request.context / span; c <= last; ++c) {
    const std::int32_t page = table.row(static_cast<std::int64_t>(b))[static_cast<std::size_t>(c)];
    if (page >= 0 && page < pages) continue;
    throw InvalidArgument("block_table[request " + std::to_string(b) + "][column " +
                          std::to_string(c) + "] = " + std::to_string(page) +
                          ": the cache has pages 0 .. " + std::to_string(pages - 1));
  }
}

}  // namespace

PrefillPlan plan_prefill(const ChunkGeometry& geometry, const CacheShard& shard,
                         std::span<const PrefillRequest> requests, const BlockTable& block_table) {
  if (shard.rank < 0 || shard.rank >= geometry.sharding.world_size) {
    throw InvalidArgument("rank = " + std::to_string(shard.rank) + ": the group has ranks 0 .. " +
                          std::to_string(geometry.sharding.world_size - 1));
  }
  check_requests(requests);
  std::vector<std::int64_t> contexts;
  contexts.reserve(requests.size());
  for (const PrefillRequest& request : requests) contexts.push_back(request.context);

  PrefillPlan plan;
  plan.context = build_chunk_plan(contexts, geometry);
  plan.block_table = block_table;
  check_block_table(plan.context, block_table, shard.pages);
  plan.cu_rows.push_back(0);
  for (std::size_t b = 0; b < requests.size(); ++b) {
    const auto& [context, new_tokens] = requests[b];
    check_new_columns(b, requests[b], geometry, block_table, shard.pages);
    for (std::int64_t p = context; p < context + new_tokens; ++p) {
      plan.position.push_back(p);
      plan.slots.push_back(slot_of(geometry.sharding, p, shard.rank, geometry.page_size,
                                   block_table.row(static_cast<std::int64_t>(b))));
    }
    plan.cu_rows.push_back(static_cast<std::int32_t>(plan.rows()));
    plan.max_rows = std::max(plan.max_rows, new_tokens);
  }
  return plan;
}

}  // namespace mladcp
