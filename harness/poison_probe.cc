// The poison probe: the numeric problem in memory that starts out as NaN and is guarded on both
// sides.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/judged_step.h"
#include "harness/poisoning_device.h"
#include "harness/probe.h"

namespace mladcp {
namespace {

// Every rank's tensors come from a poisoning device of its own, so that a broken guard names the
// rank.
class PoisoningBackend final : public Backend {
 public:
  PoisoningBackend(Backend& inner, int ranks) : inner_(inner) {
    for (int rank = 0; rank < ranks; ++rank) {
      devices_.push_back(std::make_unique<PoisoningDevice>(inner.device(rank)));
    }
  }

  Device& device(int rank) override { return poisoning(rank); }
  Stream stream(int rank) override { return inner_.stream(rank); }
  Ops ops(int rank) override { return inner_.ops(rank); }
  ScheduleParams schedule_params(const ScheduleShape& shape) const override {
    return inner_.schedule_params(shape);
  }
  const NumericsProfile& numerics(const ParallelConfig& config, std::int64_t q_len) const override {
    return inner_.numerics(config, q_len);
  }
  void run_group(const GroupOptions& options, CallLog& log,
                 const std::function<void(Collective&)>& body) override {
    inner_.run_group(options, log, body);
  }
  int sum_roundings(int ranks) const override { return inner_.sum_roundings(ranks); }
  PrefillFormats prefill_formats() const override { return inner_.prefill_formats(); }
  ProcessLink* link() override { return inner_.link(); }

  PoisoningDevice& poisoning(int rank) { return *devices_[static_cast<std::size_t>(rank)]; }

 private:
  Backend& inner_;
  std::vector<std::unique_ptr<PoisoningDevice>> devices_;
};

// The first breach on a rank and how many there are; empty when none.
std::string breaches(PoisoningDevice& device) {
  const std::vector<PoisoningDevice::BrokenGuard> broken = device.broken_guards();
  if (broken.empty()) return "";
  return fmt::format("{} {}", broken.size(), describe(broken[0]));
}

// By rank; nothing on a process that does not judge.
std::vector<std::string> breaches_of_ranks(PoisoningBackend& backend, int ranks) {
  if (ProcessLink* link = backend.link()) {
    return link->gather_at_root(breaches(backend.poisoning(link->rank_in_group())));
  }
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    all[static_cast<std::size_t>(rank)] = breaches(backend.poisoning(rank));
  }
  return all;
}

Check canary_check(const std::string& found, int rank) {
  Check check{"poison", rank, "canaries around every tensor"};
  if (found.empty()) return check;
  const std::size_t space = found.find(' ');
  check.status = CheckStatus::kFail;
  check.measured = std::stod(found.substr(0, space));
  check.message = fmt::format("stage poison, rank {}: {}", rank, found.substr(space + 1));
  return check;
}

}  // namespace

ProbeOutcome run_poison_probe(const ProbeContext& context) {
  const Scenario& scenario = context.scenario;
  const auto n = static_cast<int>(scenario.parallel.dcp);
  ProbeOutcome result;
  for_each_group(context, scenario, [&](std::int64_t group, const Progress& progress) {
    Scenario one = scenario;
    one.group = group;
    PoisoningBackend backend(context.backend, n);
    ProbeOutcome outcome = run_numeric_probe({one, backend, context.variation, progress});
    std::move(outcome.checks.begin(), outcome.checks.end(), std::back_inserter(result.checks));
    std::move(outcome.calls.begin(), outcome.calls.end(), std::back_inserter(result.calls));
    result.step_seconds = std::max(result.step_seconds, outcome.step_seconds);
    std::vector<Check> canaries;
    for (const std::string& found : breaches_of_ranks(backend, n)) {
      canaries.push_back(canary_check(found, static_cast<int>(canaries.size())));
    }
    append(result, std::move(canaries), group, n);
  });
  return result;
}

}  // namespace mladcp
