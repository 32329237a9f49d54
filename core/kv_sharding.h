// The sharding laws: which rank keeps which token of a request, and where. Pure functions; kernels,
// planner and harness call these. (The oracle enumerates owner() instead, so that a fault here
// shows.)
//
// N ranks, I consecutive tokens kept on one rank (interleave), period V = N * I. Everything is
// 64-bit: a slot times a row width passes 2^31 in real deployments.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define MLADCP_HOST_DEVICE __host__ __device__
#else
#define MLADCP_HOST_DEVICE
#endif

namespace mladcp {

struct KvSharding {
  std::int64_t world_size = 1;  // N
  std::int64_t interleave = 1;  // I

  MLADCP_HOST_DEVICE constexpr std::int64_t period() const { return world_size * interleave; }

  // The rank that keeps position p >= 0.
  MLADCP_HOST_DEVICE constexpr std::int64_t owner(std::int64_t p) const {
    return (p / interleave) % world_size;
  }
  // The index of position p among the tokens its owner keeps.
  MLADCP_HOST_DEVICE constexpr std::int64_t local(std::int64_t p) const {
    return (p / period()) * interleave + p % interleave;
  }
  // The position of rank r's local token l: the inverse of (owner, local).
  MLADCP_HOST_DEVICE constexpr std::int64_t global(std::int64_t l, std::int64_t r) const {
    return (l / interleave) * period() + r * interleave + l % interleave;
  }
  // How many of the first `length` positions rank r keeps. Negative lengths count as 0: C++
  // division truncates toward zero, and padding rows of a captured batch have lengths below 0.
  MLADCP_HOST_DEVICE constexpr std::int64_t local_length(std::int64_t length,
                                                         std::int64_t r) const {
    if (length <= 0) return 0;
    const std::int64_t rest = length % period() - r * interleave;
    const std::int64_t tail = rest < 0 ? 0 : (rest > interleave ? interleave : rest);
    return (length / period()) * interleave + tail;
  }
  // Local rows a chunk boundary at position x takes on every rank, padding included: rank 0's share
  // rounded up to a whole interleave run.
  MLADCP_HOST_DEVICE constexpr std::int64_t padded_rows(std::int64_t x) const {
    return (x + period() - 1) / period() * interleave;
  }
};

constexpr std::int64_t kNoSlot = -1;  // "another rank stores this token"

// The slot of position p in rank r's paged cache, or kNoSlot when another rank keeps it.
// block_table: this request's manager pages, each of `page` local tokens (page % interleave == 0);
// one table column therefore spans page * N positions.
template <typename Table>
MLADCP_HOST_DEVICE constexpr std::int64_t slot_of(const KvSharding& sharding, std::int64_t p,
                                                  std::int64_t r, std::int64_t page,
                                                  const Table& block_table) {
  const std::int64_t span = page * sharding.world_size;
  const std::int64_t column = p / span;
  const std::int64_t offset = p % span;
  if (sharding.owner(offset) != r) return kNoSlot;
  return static_cast<std::int64_t>(block_table[column]) * page + sharding.local(offset);
}

// Local keys on rank r that row j of a request's q_len new tokens may see; length is the global
// length including the new tokens. A mask aligned to the right end of the local shard is wrong.
MLADCP_HOST_DEVICE constexpr std::int64_t visible_length(const KvSharding& sharding,
                                                         std::int64_t length, std::int64_t q_len,
                                                         std::int64_t j, std::int64_t r) {
  return sharding.local_length(length - q_len + j + 1, r);
}

// Columns of a block table that hold `length` positions: the same on every rank.
MLADCP_HOST_DEVICE constexpr std::int64_t table_columns(const KvSharding& sharding,
                                                        std::int64_t length, std::int64_t page) {
  const std::int64_t span = page * sharding.world_size;
  return length <= 0 ? 0 : (length + span - 1) / span;
}

// Column c of the table of a kernel whose page is smaller: a kernel page of kernel_page tokens is
// part c % (page / kernel_page) of manager page c / (page / kernel_page). page % kernel_page == 0;
// slots do not change.
template <typename Table>
MLADCP_HOST_DEVICE constexpr std::int64_t kernel_table_entry(const Table& block_table,
                                                             std::int64_t column, std::int64_t page,
                                                             std::int64_t kernel_page) {
  const std::int64_t parts = page / kernel_page;
  return static_cast<std::int64_t>(block_table[column / parts]) * parts + column % parts;
}

// The length a prefix cache may report as hit: whole pages of the sharded cache, page * N positions
// each, of `common` equal tokens.
MLADCP_HOST_DEVICE constexpr std::int64_t prefix_hit_length(const KvSharding& sharding,
                                                            std::int64_t common,
                                                            std::int64_t page) {
  const std::int64_t span = page * sharding.world_size;
  return common / span * span;
}

}  // namespace mladcp
