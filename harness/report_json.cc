#include <nlohmann/json.hpp>

#include "harness/report.h"

namespace mladcp {
namespace {

using Json = nlohmann::ordered_json;

const char* name(CheckStatus status) {
  switch (status) {
    case CheckStatus::kPass:
      return "pass";
    case CheckStatus::kFail:
      return "fail";
    case CheckStatus::kSkip:
      return "skip";
  }
  return "?";
}

Json to_json(const Extents& extents) { return Json(std::vector(extents.begin(), extents.end())); }

Json to_json(const Check& check) {
  Json json = {{"stage", check.stage},       {"rank", check.rank},
               {"name", check.name},         {"status", name(check.status)},
               {"measured", check.measured}, {"bound", check.bound}};
  if (check.auditable != 0) {
    json["audited"] = check.audited;
    json["auditable"] = check.auditable;
  }
  if (!check.message.empty()) json["message"] = check.message;
  return json;
}

Json to_json(const std::vector<Check>& checks) {
  Json json = Json::array();
  for (const Check& check : checks) json.push_back(to_json(check));
  return json;
}

const char* verdict(const std::vector<Check>& checks) { return all_hold(checks) ? "pass" : "fail"; }

Json to_json(const CollectiveRow& row) {
  return {{"sequence", row.call.sequence},
          {"op", mladcp::name(row.call.op)},
          {"stage", row.call.stage},
          {"dim", row.call.dim},
          {"dtype", mladcp::name(row.call.dtype)},
          {"in_shape", to_json(row.call.in_shape)},
          {"out_shape", to_json(row.call.out_shape)},
          {"wire_bytes", row.wire_bytes},
          {"ranks", row.ranks}};
}

Json to_json(const std::vector<CallRecord>& calls) {
  Json json = Json::array();
  for (const CollectiveRow& row : collective_rows(calls)) json.push_back(to_json(row));
  return json;
}

}  // namespace

std::string collectives_json(const std::vector<CallRecord>& calls) { return to_json(calls).dump(); }

std::string to_json(const Report& report) {
  Json json = {{"schema", "mladcp." + report.verb + "/1"},
               {"verdict", verdict(report.checks)},
               {"scenario", Json::parse(to_json(report.scenario))}};
  json["checks"] = to_json(report.checks);
  json["collectives"] = to_json(report.calls);
  json["seconds"] = report.seconds;
  json["step_seconds"] = report.step_seconds;
  return json.dump(2);
}

std::string to_json(const DumpReport& report) {
  const Json json = {{"schema", "mladcp.check/1"},
                     {"verdict", verdict(report.checks)},
                     {"scenario", {{"files", report.files}, {"numerics", report.numerics}}},
                     {"checks", to_json(report.checks)},
                     {"collectives", Json::array()},
                     {"seconds", report.seconds}};
  return json.dump(2);
}

}  // namespace mladcp
