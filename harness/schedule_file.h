// Schedules that others made, from a file: one JSON object, or one a line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/scheduler.h"

namespace mladcp {

// Field names are those of the dumps in tests/golden: variant ("blocks", "tokens" or
// "dense_fp8_tokens"), seq_lens, tile_scheduler_metadata (rows of at least 5 numbers: begin
// request, begin, end request, end, begin split), num_splits; optional block_n (64), fixed_overhead
// (5), heads_times_q, num_sm_parts, num_sms. A report of `mladcp metadata` is read as well: its
// gathered schedule.
struct ForeignSchedule {
  std::int64_t line = 1;
  ScheduleDialect dialect = ScheduleDialect::kTokens;
  std::vector<std::int32_t> lengths;  // [B]
  std::vector<SchedulePart> parts;    // [P]
  std::vector<std::int32_t> num_splits;
  std::int64_t block = 64;
  std::int64_t overhead_blocks = 5;
  std::optional<std::int64_t> heads_times_q;
  std::optional<std::int64_t> num_sm_parts;
  std::optional<std::int64_t> num_sms;
};

// At least one. InvalidArgument names file, line, field and value of what is not a schedule at all;
// whether the numbers make sense is for reference/schedule_laws.h to say.
std::vector<ForeignSchedule> read_schedules(const std::string& path);
std::vector<ForeignSchedule> parse_schedules(const std::string& text, const std::string& path);

}  // namespace mladcp
