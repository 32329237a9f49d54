// What a verb found, for a person and as JSON.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "collectives/call_log.h"
#include "harness/check.h"
#include "harness/scenario.h"

namespace mladcp {

struct Report {
  std::string verb;  // "run"
  Scenario scenario;
  std::vector<Check> checks;      // in stage order, ranks within a stage
  std::vector<CallRecord> calls;  // of the groups in turn, by rank
  double seconds = 0.0;           // of the whole verb
  double step_seconds = 0.0;      // of the simulated step, the slowest rank
  bool silent = false;            // another process of the group prints the report of all ranks
};

// {"schema": "mladcp.run/1", "verdict", "scenario", "checks", "collectives", "seconds", ...}
std::string to_json(const Report& report);

// Configuration, one table of stages, one of collectives, the verdict; of a failed run the first
// failure's message comes first.
void print(const Report& report, std::FILE* stream);

// Of `check`: calls that came from files, one a rank.
struct DumpReport {
  std::vector<std::string> files;
  std::string numerics;  // name of a profile; empty: by the dtypes
  std::vector<Check> checks;
  double seconds = 0.0;
};

// {"schema": "mladcp.check/1", "verdict", "scenario": {"files", "numerics"}, "checks", "seconds"}
std::string to_json(const DumpReport& report);
void print(const DumpReport& report, std::FILE* stream);

// The parts that other verbs' reports share.
void print_configuration(const std::string& verb, const Scenario& scenario, std::FILE* stream);
void print_collectives(const std::vector<CallRecord>& calls, std::FILE* stream);
// Lines 0 to count - 1 by print_line; of many the first and last few, and how many lie between.
void print_ends(std::size_t count, std::FILE* stream,
                const std::function<void(std::size_t)>& print_line);
std::string collectives_json(const std::vector<CallRecord>& calls);  // an array
std::string bytes_text(std::int64_t bytes);                          // "516.1 kB"

// One line a sequence number: the call with the ranks that made it.
struct CollectiveRow {
  CollectiveCall call;
  std::int64_t wire_bytes = 0;  // what each rank must receive
  std::vector<int> ranks;
};
std::vector<CollectiveRow> collective_rows(const std::vector<CallRecord>& calls);

}  // namespace mladcp
