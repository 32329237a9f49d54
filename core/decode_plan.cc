#include "core/decode_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

void expect_valid(std::int64_t index, const StepRequest& request, const KvSharding& sharding,
                  std::int64_t page_size, const BlockTable& table) {
  const std::string where = "request " + std::to_string(index) + ": ";
  if (request.length < 0 || request.q_len < 0) {
    throw InvalidArgument(where + "length " + std::to_string(request.length) + " and q_len " +
                          std::to_string(request.q_len) + " must be at least 0");
  }
  if (request.length > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(where + "length " + std::to_string(request.length) +
                          " is beyond the 2^31 - 1 positions a row index can name");
  }
  const std::int64_t columns = table_columns(sharding, request.length, page_size);
  if (columns > table.columns) {
    throw InvalidArgument(where + "length " + std::to_string(request.length) + " needs " +
                          std::to_string(columns) + " block table columns, the table has " +
                          std::to_string(table.columns));
  }
}

}  // namespace

DecodePlan plan_decode(const KvSharding& sharding, std::int64_t rank, std::int64_t page_size,
                       std::span<const StepRequest> requests, const BlockTable& block_table) {
  const std::size_t entries = requests.size() * static_cast<std::size_t>(block_table.columns);
  if (block_table.pages.size() != entries) {
    throw InvalidArgument("block_table has " + std::to_string(block_table.pages.size()) +
                          " entries, expected " + std::to_string(entries) +
                          " (requests x columns)");
  }
  DecodePlan plan;
  plan.block_table = block_table;
  plan.row_begin.push_back(0);
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(requests.size()); ++b) {
    const StepRequest& request = requests[static_cast<std::size_t>(b)];
    expect_valid(b, request, sharding, page_size, block_table);
    std::int32_t longest = 0;
    for (std::int64_t j = 0; j < request.q_len; ++j) {
      const std::int64_t position = request.length - request.q_len + j;
      const auto visible = static_cast<std::int32_t>(
          visible_length(sharding, request.length, request.q_len, j, rank));
      plan.request.push_back(static_cast<std::int32_t>(b));
      plan.position.push_back(position);
      plan.slots.push_back(position < 0
                               ? kNoSlot
                               : slot_of(sharding, position, rank, page_size, block_table.row(b)));
      plan.visible.push_back(visible);
      longest = std::max(longest, visible);
    }
    plan.row_begin.push_back(static_cast<std::int32_t>(plan.rows()));
    plan.lengths.push_back(longest);
    plan.max_q_len = std::max(plan.max_q_len, request.q_len);
  }
  return plan;
}

}  // namespace mladcp
