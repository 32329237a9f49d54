// What a tile schedule must satisfy, stated without looking at how one is built: a judge of any
// schedule, whoever made it.
//
//   shape        one num_splits entry more than requests, at least one part
//   range        the numbers of a busy part point at requests and keys that exist
//   cut          a request is cut at a block, nowhere else
//   covered      every block of every request lies in exactly one busy part; an empty request too
//   begin_split  a part's begin split counts the parts before it that worked on its first request
//   num_splits   num_splits is the cumulative count of parts that work on each request
//   load         no part costs more than ceil(total / parts) + overhead blocks
//   idle         idle parts come last and cannot be mistaken for work
//   part_count   as many parts as fit on the SMs for the heads the kernel sees
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/scheduler.h"

namespace mladcp {

struct ScheduleClaim {
  ScheduleDialect dialect = ScheduleDialect::kTokens;
  std::span<const std::int32_t> lengths;     // [B], each at least 0
  std::span<const SchedulePart> parts;       // [P]
  std::span<const std::int32_t> num_splits;  // [B + 1]
  std::int64_t block = 64;
  std::int64_t overhead_blocks = 5;
};

struct ScheduleViolation {
  std::string_view law;       // a name of the table above
  std::int64_t request = -1;  // -1: not about one request
  std::int64_t part = -1;     // -1: not about one part
  std::string message;        // names request, part, what was found and what the law wants
};

inline constexpr std::string_view kScheduleLaws[] = {
    "shape", "range", "cut", "covered", "begin_split", "num_splits", "load", "idle", "part_count"};

// All laws but part_count. Empty: the schedule holds.
std::vector<ScheduleViolation> judge_schedule(const ScheduleClaim& claim);

// part_count alone: `parts` against the card, for heads that are gathered over the DCP ranks.
std::vector<ScheduleViolation> judge_part_count(std::int64_t parts, std::int64_t num_sms,
                                                std::int64_t heads_times_q, std::int64_t h_kv);

}  // namespace mladcp
