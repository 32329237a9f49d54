// What decode and prefill steps of a simulated group share: the ranks of this process are started,
// and each runs with the changes a variation makes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/call_log.h"
#include "harness/backend.h"
#include "harness/poisoning_device.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

// One rank's surroundings, the variation's config and decorators in place. Plan and inputs differ
// between phases: the variation changes them where they are made. Under a variation memory starts
// out as NaN: what a fault leaves unwritten must neither be right by chance nor differ between
// runs.
class RankStep {
 public:
  // `variation` may be null. All arguments outlive the object.
  RankStep(Backend& backend, const Variation* variation, const ParallelConfig& config,
           Collective& collective);

  int rank() const { return collective_.rank(); }
  // Of the rank's tensors, which do not outlive this.
  Device& device() const { return device_; }
  Stream stream() const { return stream_; }
  const Variation* variation() const { return variation_; }
  const ParallelConfig& config() const { return config_; }
  const Ops& plain_ops() const { return plain_ops_; }
  Ops ops() { return changed_ops_ != nullptr ? changed_ops_->ops() : plain_ops_; }
  Collective& collective() { return changed_group_ != nullptr ? *changed_group_ : collective_; }

 private:
  const Variation* variation_;
  Collective& collective_;
  std::optional<BlankDevice> blank_;
  Device& device_;
  Stream stream_;
  ParallelConfig config_;
  Ops plain_ops_;
  std::unique_ptr<OpsDecorator> changed_ops_;
  std::unique_ptr<Collective> changed_group_;
};

// Seconds `step` takes on the rank, from an idle stream until its work and the group's is complete.
double seconds_of(const RankStep& rank, Collective& group, const std::function<void()>& step);

// What running a group left: its calls by rank, in order, and the seconds each rank's body
// returned.
struct GroupRun {
  std::vector<CallRecord> calls;
  std::vector<double> seconds;  // [N]; 0 for ranks of other processes

  double slowest() const;
};

// Runs body once on every rank of this process; the first real error is rethrown.
GroupRun run_ranks(const Scenario& scenario, Backend& backend,
                   const std::function<double(Collective&)>& body);

}  // namespace mladcp
