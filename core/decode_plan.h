// A decode step's plan for one rank, as data. Faults are changed plans; kernels read it from device
// tensors (DecodeWorkspace::load).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kv_sharding.h"

namespace mladcp {

// One request of a step. length is global and includes the q_len new tokens. A padding request of a
// captured batch has length 0; its rows see nothing and store nothing.
struct StepRequest {
  std::int64_t length = 0;  // S
  std::int64_t q_len = 1;   // Q
};

// Manager pages of every request, the same on all ranks of a group. Row-major [B, columns].
struct BlockTable {
  std::int64_t columns = 0;
  std::vector<std::int32_t> pages;

  std::span<const std::int32_t> row(std::int64_t request) const {
    return std::span(pages).subspan(static_cast<std::size_t>(request * columns),
                                    static_cast<std::size_t>(columns));
  }
};

struct DecodePlan {
  std::vector<std::int32_t> request;    // [T]
  std::vector<std::int64_t> position;   // [T] global position of the row's token; < 0 for padding
  std::vector<std::int64_t> slots;      // [T] where this rank stores the row's token, or kNoSlot
  std::vector<std::int32_t> visible;    // [T] local keys the row may see
  std::vector<std::int32_t> row_begin;  // [B + 1]
  std::vector<std::int32_t> lengths;    // [B] largest visible of the request's rows
  BlockTable block_table;               // [B, columns]
  std::int64_t max_q_len = 1;

  std::int64_t rows() const { return static_cast<std::int64_t>(request.size()); }
  std::int64_t requests() const { return static_cast<std::int64_t>(lengths.size()); }
};

// Throws InvalidArgument naming request, field and remedy: negative lengths or q_len, a table with
// too few columns for a length, or local lengths beyond int32.
DecodePlan plan_decode(const KvSharding& sharding, std::int64_t rank, std::int64_t page_size,
                       std::span<const StepRequest> requests, const BlockTable& block_table);

}  // namespace mladcp
