#include "harness/metadata_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "harness/schedule_file.h"
#include "harness/schedule_svg.h"

namespace mladcp {
namespace {

constexpr std::int64_t kH200Sms = 132;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<SchedulePart> parts_of(const Schedule& schedule) {
  std::vector<SchedulePart> parts;
  for (std::int64_t p = 0; p < schedule.num_parts(); ++p) {
    parts.push_back(read_part(schedule.parts, p));
  }
  return parts;
}

AttentionWorkShape work_shape(const MetadataScenario& scenario) {
  AttentionWorkShape shape;
  shape.heads = scenario.gathered_heads();
  shape.q_len = scenario.q_len;
  shape.cache_element_bytes = static_cast<std::int64_t>(size_bytes(scenario.kv_dtype));
  shape.query_element_bytes = shape.cache_element_bytes;
  return shape;
}

ScheduleSide side_for(std::int64_t heads, const MetadataScenario& scenario) {
  const ScheduleParams& params = scenario.params;
  ScheduleSide side;
  side.heads = heads;
  side.schedule =
      make_schedule(scenario.lengths, {heads, scenario.q_len}, scenario.dialect, params);
  side.payload =
      part_payload(scenario.lengths, side.schedule.num_parts(), scenario.dialect, params);
  side.pieces = schedule_pieces(side.schedule, scenario.lengths, params.block);
  side.loads = part_loads(side.schedule, scenario.lengths, params);
  side.tiles = params.h_kv * query_tiles(scenario.gathered_heads(), scenario.q_len, params.h_kv);
  side.timeline = run_on_sms(side.loads, side.tiles, params.num_sms);
  side.partial_bytes = partial_bytes(side.schedule.num_splits, work_shape(scenario));
  const std::vector<SchedulePart> parts = parts_of(side.schedule);
  side.violations =
      judge_schedule({scenario.dialect, scenario.lengths, parts, side.schedule.num_splits,
                      params.block, params.overhead_blocks});
  const auto count = judge_part_count(side.schedule.num_parts(), params.num_sms,
                                      heads * scenario.q_len, params.h_kv);
  side.violations.insert(side.violations.end(), count.begin(), count.end());
  return side;
}

std::string panel_subtitle(const ScheduleSide& side, const MetadataScenario& scenario) {
  return fmt::format("{} parts x {} tiles on {} SMs; imbalance {:.2f}; {:.1f} MB of partials",
                     side.schedule.num_parts(), side.tiles, scenario.params.num_sms,
                     side.timeline.imbalance(), static_cast<double>(side.partial_bytes) * 1e-6);
}

}  // namespace

MetadataReport study_schedule(const MetadataScenario& scenario) {
  const auto begin = std::chrono::steady_clock::now();
  MetadataReport report;
  report.scenario = scenario;
  report.gathered = side_for(scenario.gathered_heads(), scenario);
  report.local = side_for(scenario.heads, scenario);
  const std::int64_t keys =
      std::accumulate(scenario.lengths.begin(), scenario.lengths.end(), std::int64_t{0});
  const AttentionWorkShape shape = work_shape(scenario);
  report.flops = attention_flops(keys * scenario.q_len, shape);
  report.bytes = attention_bytes(keys, static_cast<std::int64_t>(scenario.lengths.size()), shape);
  report.seconds = seconds_since(begin);
  return report;
}

std::string to_svg(const MetadataReport& report) {
  const MetadataScenario& scenario = report.scenario;
  const auto panel = [&](const ScheduleSide& side, const std::string& title) {
    return SchedulePanel{title, panel_subtitle(side, scenario), side.pieces, &side.timeline,
                         scenario.params.overhead_blocks};
  };
  return schedule_svg(
      fmt::format("One decode step on one rank: {} requests, {} heads x DCP {}, q_len {}",
                  scenario.lengths.size(), scenario.heads, scenario.dcp, scenario.q_len),
      panel(report.gathered, fmt::format("scheduled for {} gathered heads", report.gathered.heads)),
      panel(report.local, fmt::format("scheduled for {} local heads (wrong)", report.local.heads)));
}

std::int64_t JudgedFile::violations() const {
  std::int64_t count = 0;
  for (const JudgedSchedule& schedule : schedules) {
    count += static_cast<std::int64_t>(schedule.violations.size());
  }
  return count;
}

JudgedFile judge_file(const std::string& path, std::optional<std::int64_t> heads_times_q,
                      std::optional<std::int64_t> num_sms) {
  const auto begin = std::chrono::steady_clock::now();
  JudgedFile judged;
  judged.path = path;
  for (const ForeignSchedule& foreign : read_schedules(path)) {
    JudgedSchedule schedule;
    schedule.line = foreign.line;
    schedule.parts = static_cast<std::int64_t>(foreign.parts.size());
    schedule.requests = static_cast<std::int64_t>(foreign.lengths.size());
    schedule.dialect = foreign.dialect;
    schedule.heads_times_q = heads_times_q.has_value() ? heads_times_q : foreign.heads_times_q;
    schedule.violations =
        judge_schedule({foreign.dialect, foreign.lengths, foreign.parts, foreign.num_splits,
                        foreign.block, foreign.overhead_blocks});
    if (foreign.num_sm_parts.value_or(schedule.parts) != schedule.parts) {
      schedule.violations.push_back({"shape", -1, -1,
                                     fmt::format("num_sm_parts is {}, but {} parts are listed",
                                                 *foreign.num_sm_parts, schedule.parts)});
    }
    if (schedule.heads_times_q) {
      const std::int64_t sms = num_sms.value_or(foreign.num_sms.value_or(kH200Sms));
      const auto count = judge_part_count(schedule.parts, sms, *schedule.heads_times_q, 1);
      schedule.violations.insert(schedule.violations.end(), count.begin(), count.end());
    }
    judged.schedules.push_back(std::move(schedule));
  }
  judged.seconds = seconds_since(begin);
  return judged;
}

}  // namespace mladcp
