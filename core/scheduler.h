// Split-KV tile schedule of paged MLA decode: which part (a group of SMs) walks which keys of which
// requests. The integers are those of FlashMLA's kernels, in both of its dialects, so that a
// schedule built here can be compared with, or handed to, a real kernel.
//
// Under DCP `heads` are always the gathered heads, N * H, whatever the cache's dtype: the kernel
// that reads the schedule sees the queries of all N ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/attention_ops.h"

namespace mladcp {

// kTokens (the dense FP8 kernel): positions in tokens; an empty request costs 0 blocks; an idle
// part has begin request B.
// kBlocks (the BF16 kernel): positions in blocks; an empty request costs 1 block, and a part that
// ends with one has end 0; an idle part has begin request -1 and an unspecified begin (0 here).
enum class ScheduleDialect : std::uint8_t { kTokens, kBlocks };

std::string_view name(ScheduleDialect dialect);                     // "tokens", "blocks"
ScheduleDialect schedule_dialect_from_name(std::string_view text);  // InvalidArgument

struct ScheduleParams {
  std::int64_t num_sms = 132;
  std::int64_t h_kv = 1;             // key heads; 1 in MLA
  std::int64_t block = 64;           // keys of one step of the kernel
  std::int64_t overhead_blocks = 5;  // what starting a request costs, in blocks
};

inline constexpr std::int64_t kPartFields = 8;      // int32 fields of one part, the last 3 zero
inline constexpr std::int64_t kQueryTileRows = 64;  // query rows one SM works on
inline constexpr std::int64_t kMaxScheduledRequests = 16384;

// One part: keys [begin, ...) of begin_request up to [..., end) of end_request, whole requests in
// between. begin_split counts the parts that worked on begin_request before.
struct SchedulePart {
  std::int32_t begin_request = 0;
  std::int32_t begin = 0;
  std::int32_t end_request = 0;
  std::int32_t end = 0;
  std::int32_t begin_split = 0;

  friend bool operator==(const SchedulePart& a, const SchedulePart& b) = default;
};

// Row `index` of parts `[P, 8]`.
SchedulePart read_part(std::span<const std::int32_t> parts, std::int64_t index);
bool is_idle(const SchedulePart& part, std::int64_t requests, ScheduleDialect dialect);

// SMs that work on one part: a query tile each, for every key head.
std::int64_t query_tiles(std::int64_t heads, std::int64_t q_len, std::int64_t h_kv = 1);

// max(1, num_sms / h_kv / query_tiles): never 0, also when the tiles outnumber the SMs.
std::int64_t num_sm_parts(std::int64_t num_sms, std::int64_t heads, std::int64_t q_len,
                          std::int64_t h_kv = 1);

// Blocks a request of `length` keys costs, without overhead.
std::int64_t scheduled_blocks(std::int64_t length, ScheduleDialect dialect, std::int64_t block);

// What one part may cost, in blocks: ceil(total / parts) + overhead, where total sums
// scheduled_blocks + overhead over the requests. InvalidArgument: a negative length, more than
// kMaxScheduledRequests, a total beyond int32.
std::int64_t part_payload(std::span<const std::int32_t> lengths, std::int64_t num_parts,
                          ScheduleDialect dialect, const ScheduleParams& params);

// Fills parts `[P, 8]` (P from its size) and cumulative num_splits `[B + 1]`. Parts are filled in
// order; a request is cut at a block when its rest does not fit but overhead and a block do.
// Every field is written; nothing allocates. InvalidArgument as part_payload, and wrong sizes.
void build_schedule(std::span<std::int32_t> parts, std::span<std::int32_t> num_splits,
                    std::span<const std::int32_t> lengths, ScheduleDialect dialect,
                    const ScheduleParams& params = {});

// The same on contiguous int32 host tensors: parts `[P, 8]`, num_splits `[B + 1]`, lengths `[B]`.
void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                    ScheduleDialect dialect, const ScheduleParams& params = {});

// A schedule that owns its numbers.
struct Schedule {
  ScheduleDialect dialect = ScheduleDialect::kTokens;
  std::vector<std::int32_t> parts;       // [P, 8]
  std::vector<std::int32_t> num_splits;  // [B + 1]

  std::int64_t num_parts() const { return static_cast<std::int64_t>(parts.size()) / kPartFields; }
  std::int64_t requests() const { return static_cast<std::int64_t>(num_splits.size()) - 1; }
};

// For `shape.heads` (gathered) heads: num_sm_parts parts, then build_schedule.
Schedule make_schedule(std::span<const std::int32_t> lengths, const ScheduleShape& shape,
                       ScheduleDialect dialect, const ScheduleParams& params = {});

}  // namespace mladcp
