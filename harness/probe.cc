#include "harness/probe.h"

#include <string>
#include <utility>

#include "core/error.h"

namespace mladcp {

const std::vector<Probe>& probes() {
  static const std::vector<Probe> all = {
      {"numeric", "random data against FP64, each stage within its derived bound",
       run_numeric_probe},
      {"census", "each key attended exactly once, by the right head of the right request",
       run_census_probe},
      {"constant", "equal latents and logits give exactly that latent, at any length",
       run_constant_probe},
      {"sink", "one key 9 above the crowd's mean logit: P must not be flushed", run_sink_probe},
      {"shifted", "latents with a mean of 2 deviations: sums that cannot hide drift",
       run_shifted_probe},
      {"scale", "halving q_scale while doubling k_scale doubles the output, bit for bit",
       run_scale_probe},
      {"poison", "memory that starts as NaN, guarded on both sides: reads and writes astray",
       run_poison_probe},
      {"tag", "rows that name rank, request and position, through all that moves them",
       run_tag_probe},
      {"parity", "other page numbers, the same bits", run_parity_probe},
      {"repeat", "two equal runs, the same bits", run_repeat_probe},
  };
  return all;
}

const Probe& find_probe(std::string_view name) {
  std::string known;
  for (const Probe& probe : probes()) {
    if (probe.name == name) return probe;
    known += (known.empty() ? "" : ", ") + std::string(probe.name);
  }
  throw InvalidArgument("probe = '" + std::string(name) + "': use 'all' or some of " + known);
}

GroupRange simulated_groups(const Scenario& scenario) {
  if (scenario.group < 0) return {0, scenario.parallel.groups()};
  return {scenario.group, scenario.group + 1};
}

void append(ProbeOutcome& outcome, std::vector<Check> checks, std::int64_t group, std::int64_t n) {
  for (Check& check : checks) {
    if (check.rank != Check::kAllRanks) check.rank += static_cast<int>(group * n);
    outcome.checks.push_back(std::move(check));
  }
}

void append(ProbeOutcome& outcome, std::vector<CallRecord> calls, std::int64_t group,
            std::int64_t n) {
  for (CallRecord& record : calls) {
    record.rank += static_cast<int>(group * n);
    outcome.calls.push_back(record);
  }
}

}  // namespace mladcp
