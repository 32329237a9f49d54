// Probes: problems chosen so that what a step makes of them says exactly what it did. A probe
// builds its problem, runs the group and judges; docs/probes.md says what each one sees.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "collectives/call_log.h"
#include "harness/backend.h"
#include "harness/check.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

// Told what has been done, in [0, 1], and what comes next; for progress bars.
using Progress = std::function<void(double done, std::string_view next)>;

struct ProbeContext {
  const Scenario& scenario;
  Backend& backend;
  const Variation* variation;  // null for the clean run
  const Progress& progress;
};

struct ProbeOutcome {
  std::vector<Check> checks;      // ranks are TP ranks: group * N + rank of the group
  std::vector<CallRecord> calls;  // of the groups in turn
  double step_seconds = 0.0;
};

struct Probe {
  std::string_view name;
  std::string_view sees;  // one line for --help and docs
  ProbeOutcome (*run)(const ProbeContext& context);
};

// All probes, in the order `--probe all` runs them.
const std::vector<Probe>& probes();
// InvalidArgument listing the known names.
const Probe& find_probe(std::string_view name);

// The groups a scenario simulates: [first, last).
struct GroupRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
GroupRange simulated_groups(const Scenario& scenario);

// Adds what group `group` of ranks 0 .. n - 1 found, its ranks renumbered as TP ranks.
void append(ProbeOutcome& outcome, std::vector<Check> checks, std::int64_t group, std::int64_t n);
void append(ProbeOutcome& outcome, std::vector<CallRecord> calls, std::int64_t group,
            std::int64_t n);

ProbeOutcome run_numeric_probe(const ProbeContext& context);
ProbeOutcome run_census_probe(const ProbeContext& context);
ProbeOutcome run_constant_probe(const ProbeContext& context);
ProbeOutcome run_parity_probe(const ProbeContext& context);
ProbeOutcome run_poison_probe(const ProbeContext& context);
ProbeOutcome run_repeat_probe(const ProbeContext& context);
ProbeOutcome run_scale_probe(const ProbeContext& context);
ProbeOutcome run_shifted_probe(const ProbeContext& context);
ProbeOutcome run_sink_probe(const ProbeContext& context);
ProbeOutcome run_tag_probe(const ProbeContext& context);

}  // namespace mladcp
