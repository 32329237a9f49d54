// What `mladcp metadata` found: the schedule for gathered heads beside the one that local heads
// would give, or the verdict on schedules from a file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/schedule_work.h"
#include "core/scheduler.h"
#include "reference/schedule_laws.h"

namespace mladcp {

struct MetadataScenario {
  std::vector<std::int32_t> lengths;  // of this rank's shard
  std::int64_t heads = 16;            // H, per rank
  std::int64_t dcp = 1;               // N
  std::int64_t q_len = 1;
  ScheduleDialect dialect = ScheduleDialect::kTokens;
  DType kv_dtype = DType::kE4M3;
  ScheduleParams params;

  std::int64_t gathered_heads() const { return heads * dcp; }
};

// A schedule built for `heads` heads, run by a kernel that sees the gathered heads.
struct ScheduleSide {
  std::int64_t heads = 0;
  Schedule schedule;
  std::int64_t payload = 0;  // blocks a part may cost
  std::vector<SchedulePiece> pieces;
  std::vector<std::int64_t> loads;  // [P] blocks
  std::int64_t tiles = 0;           // thread blocks of one part
  SmTimeline timeline;
  std::int64_t partial_bytes = 0;
  std::vector<ScheduleViolation> violations;  // empty, or the scheduler is broken
};

struct MetadataReport {
  MetadataScenario scenario;
  ScheduleSide gathered;
  ScheduleSide local;
  std::int64_t flops = 0;  // of the attention, either way
  std::int64_t bytes = 0;  // cache, query and output; without partials
  double seconds = 0;

  bool pass() const { return gathered.violations.empty() && local.violations.empty(); }
};

// InvalidArgument as build_schedule and num_sm_parts.
MetadataReport study_schedule(const MetadataScenario& scenario);

void print(const MetadataReport& report, std::FILE* stream);
std::string to_json(const MetadataReport& report);
std::string to_svg(const MetadataReport& report);

// Verdicts on schedules from a file.
struct JudgedSchedule {
  std::int64_t line = 1;
  std::int64_t parts = 0;
  std::int64_t requests = 0;
  std::optional<std::int64_t> heads_times_q;  // what part_count was judged for
  ScheduleDialect dialect = ScheduleDialect::kTokens;
  std::vector<ScheduleViolation> violations;
};

struct JudgedFile {
  std::string path;
  std::vector<JudgedSchedule> schedules;
  double seconds = 0;

  std::int64_t violations() const;
};

// heads_times_q and num_sms from the command line win over the file's; without either part_count is
// not judged.
JudgedFile judge_file(const std::string& path, std::optional<std::int64_t> heads_times_q,
                      std::optional<std::int64_t> num_sms);

void print(const JudgedFile& file, std::FILE* stream);
std::string to_json(const JudgedFile& file);

}  // namespace mladcp
