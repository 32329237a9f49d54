// The report of `mladcp metadata` as JSON, schema mladcp.metadata/1.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/metadata_report.h"

namespace mladcp {
namespace {

using Json = nlohmann::ordered_json;

// One check a law: how often it is broken, which must be never.
void add_checks(Json& checks, const std::string& subject,
                const std::vector<ScheduleViolation>& violations, bool part_count_judged) {
  for (const std::string_view law : kScheduleLaws) {
    const auto broken = std::count_if(violations.begin(), violations.end(),
                                      [&](const auto& v) { return v.law == law; });
    const bool skipped = law == "part_count" && !part_count_judged;
    Json check = {{"stage", "build_schedule"},
                  {"rank", nullptr},
                  {"name", subject + ": " + std::string(law)},
                  {"status", skipped       ? "skip"
                             : broken == 0 ? "pass"
                                           : "fail"},
                  {"measured", broken},
                  {"bound", 0}};
    if (skipped) check["message"] = "no heads given";
    checks.push_back(std::move(check));
  }
}

void add_violations(Json& list, const std::string& subject,
                    const std::vector<ScheduleViolation>& violations) {
  for (const ScheduleViolation& v : violations) {
    list.push_back({{"schedule", subject},
                    {"law", v.law},
                    {"request", v.request < 0 ? Json(nullptr) : Json(v.request)},
                    {"part", v.part < 0 ? Json(nullptr) : Json(v.part)},
                    {"message", v.message}});
  }
}

Json to_json(const ScheduleSide& side, const MetadataScenario& scenario) {
  Json rows = Json::array();
  for (std::int64_t p = 0; p < side.schedule.num_parts(); ++p) {
    const SchedulePart part = read_part(side.schedule.parts, p);
    rows.push_back(
        {part.begin_request, part.begin, part.end_request, part.end, part.begin_split, 0, 0, 0});
  }
  return {{"variant", name(scenario.dialect)},
          {"heads_times_q", side.heads * scenario.q_len},
          {"num_sms", scenario.params.num_sms},
          {"num_sm_parts", side.schedule.num_parts()},
          {"block_n", scenario.params.block},
          {"fixed_overhead", scenario.params.overhead_blocks},
          {"seq_lens", scenario.lengths},
          {"tile_scheduler_metadata", std::move(rows)},
          {"num_splits", side.schedule.num_splits},
          {"payload_blocks", side.payload},
          {"part_load_blocks", side.loads},
          {"thread_blocks_per_part", side.tiles},
          {"sm_load_blocks", side.timeline.sm_load},
          {"mean_sm_load_blocks", side.timeline.mean_load()},
          {"makespan_blocks", side.timeline.makespan},
          {"imbalance", side.timeline.imbalance()},
          {"partial_bytes", side.partial_bytes}};
}

}  // namespace

std::string to_json(const MetadataReport& report) {
  const MetadataScenario& scenario = report.scenario;
  Json json = {{"schema", "mladcp.metadata/1"},
               {"verdict", report.pass() ? "pass" : "fail"},
               {"scenario",
                {{"heads", scenario.heads},
                 {"dcp", scenario.dcp},
                 {"gathered_heads", scenario.gathered_heads()},
                 {"q_len", scenario.q_len},
                 {"num_sms", scenario.params.num_sms},
                 {"h_kv", scenario.params.h_kv},
                 {"block", scenario.params.block},
                 {"overhead_blocks", scenario.params.overhead_blocks},
                 {"dialect", name(scenario.dialect)},
                 {"kv_dtype", name(scenario.kv_dtype)},
                 {"seq_lens", scenario.lengths}}}};
  json["checks"] = Json::array();
  json["collectives"] = Json::array();
  json["seconds"] = report.seconds;
  json["gathered"] = to_json(report.gathered, scenario);
  json["local"] = to_json(report.local, scenario);
  json["flops"] = report.flops;
  json["bytes"] = report.bytes;
  json["violations"] = Json::array();
  for (const auto& [subject, side] :
       {std::pair<const char*, const ScheduleSide*>{"gathered heads", &report.gathered},
        {"local heads", &report.local}}) {
    add_checks(json["checks"], subject, side->violations, true);
    add_violations(json["violations"], subject, side->violations);
  }
  return json.dump(2);
}

std::string to_json(const JudgedFile& file) {
  Json json = {{"schema", "mladcp.metadata/1"},
               {"verdict", file.violations() == 0 ? "pass" : "fail"},
               {"scenario", {{"from", file.path}, {"schedules", file.schedules.size()}}}};
  json["checks"] = Json::array();
  json["collectives"] = Json::array();
  json["seconds"] = file.seconds;
  json["violations"] = Json::array();
  for (const JudgedSchedule& schedule : file.schedules) {
    const std::string subject = "line " + std::to_string(schedule.line);
    add_checks(json["checks"], subject, schedule.violations, schedule.heads_times_q.has_value());
    add_violations(json["violations"], subject, schedule.violations);
  }
  return json.dump(2);
}

}  // namespace mladcp
