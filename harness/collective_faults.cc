// Faults of the group: data placed wrongly, and ranks out of step.
#include <utility>

#include "harness/fault.h"
#include "harness/fault_variations.h"

namespace mladcp {
namespace {

using Forward = CollectiveFault::Forward;

// Runs the call, then lets `edit` rearrange the host copy of its output; only calls of `stage`.
Fault placement_fault(std::string name, std::string imitates, std::string stage,
                      std::string_view call_stage, int rank,
                      std::function<void(const TensorView& out, int n)> edit) {
  const auto n = static_cast<int>(fault_scenario().parallel.dcp);
  auto run = [edit = std::move(edit), call_stage, n](
                 const Forward& forward, const CollectiveCall& call, const TensorView& out,
                 const TensorView& in, Stream stream) {
    forward(call, out, in, stream);
    if (call.stage != call_stage) return;
    edit_tensor(out, stream, [&](const TensorView& host) { edit(host, n); });
  };
  return {std::move(name),
          std::move(imitates),
          std::move(stage),
          rank,
          fault_scenario(),
          {"numeric"},
          std::make_shared<CollectiveFault>(rank, std::move(run))};
}

// Rotates the blocks of `dim` among the N ranks by one.
void rotate_blocks(const TensorView& out, int dim, int n) {
  const Tensor copy = copied_to_host(out, {});
  const std::int64_t block = out.size(dim) / n;
  for (std::int64_t s = 0; s < n; ++s) {
    host_device().copy_strided(out.narrow(dim, s * block, block),
                               copy.view().narrow(dim, (s + 1) % n * block, block), {});
  }
}

// A call changed before it reaches the group: the ranks no longer agree.
Fault step_fault(std::string name, std::string imitates, int rank, CollectiveFault::Run run) {
  Scenario scenario = fault_scenario();
  scenario.timeout_s = 0.2;  // the wait for a rank that never comes
  return {std::move(name),
          std::move(imitates),
          "collectives",
          Fault::kEveryRank,
          scenario,
          {"numeric"},
          std::make_shared<CollectiveFault>(rank, std::move(run))};
}

std::vector<Fault> placement_faults() {
  std::vector<Fault> faults;
  faults.push_back(placement_fault("gather-blocks-rotated", "head blocks of the ranks rotated",
                                   "query", "query", Fault::kEveryRank,
                                   [](const TensorView& out, int n) { rotate_blocks(out, 1, n); }));
  faults.push_back(placement_fault(
      "gather-on-tokens", "gathered on dim 0, read as dim 1 (vLLM 30610)", "query", "query",
      Fault::kEveryRank, [](const TensorView& out, int n) {
        // [N, T, H, D] left as it arrived, though [T, N * H, D] is expected.
        const Tensor copy = copied_to_host(out, {});
        const TensorView by_rank = copy.view().split(1, n).transposed(0, 1);
        const Tensor flat = copied_to_host(by_rank, {});
        host_device().copy(out.data, flat.view().data, static_cast<std::size_t>(out.bytes()), {});
      }));
  faults.push_back(placement_fault(
      "gather-repeats-own", "every block is this rank's own (a group of one)", "query", "query", 1,
      [](const TensorView& out, int n) {
        const Tensor copy = copied_to_host(out, {});
        const std::int64_t h = out.size(1) / n;
        for (std::int64_t s = 0; s < n; ++s) {
          host_device().copy_strided(out.narrow(1, s * h, h), copy.view().narrow(1, h, h), {});
        }
      }));
  faults.push_back(placement_fault("lse-blocks-rotated", "gathered LSE in another rank order",
                                   "correct", "lse", 2,
                                   [](const TensorView& out, int n) { rotate_blocks(out, 0, n); }));
  faults.push_back(placement_fault("reduce-scatter-halved", "a reduction that averages", "combined",
                                   "output", Fault::kEveryRank, [](const TensorView& out, int n) {
                                     for (std::int64_t i = 0; i < out.elements(); ++i) {
                                       set_value(out, i, value_at(out, i) / static_cast<float>(n));
                                     }
                                   }));
  faults.push_back(placement_fault(
      "reduce-scatter-heads-reversed", "slices in reversed head order", "combined", "output", 0,
      [](const TensorView& out, int) {
        const Tensor copy = copied_to_host(out, {});
        const std::int64_t h = out.size(1);
        for (std::int64_t i = 0; i < h; ++i) {
          host_device().copy_strided(out.narrow(1, i, 1), copy.view().narrow(1, h - 1 - i, 1), {});
        }
      }));
  return faults;
}

std::vector<Fault> step_faults() {
  std::vector<Fault> faults;
  faults.push_back(step_fault("rank-returns-early", "one rank skips a collective on an empty shard",
                              2,
                              [](const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream) {
                                if (call.stage != "lse") forward(call, out, in, stream);
                              }));
  faults.push_back(step_fault("rank-of-another-dtype", "one rank gathers bytes, the others e4m3", 1,
                              [](const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream) {
                                CollectiveCall changed = call;
                                if (call.stage == "query") changed.dtype = DType::kBytes;
                                forward(changed, out, in, stream);
                              }));
  faults.push_back(step_fault("rank-of-another-length", "one rank passes another token count", 0,
                              [](const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream) {
                                CollectiveCall changed = call;
                                if (call.stage == "output") changed.in_shape[0] += 1;
                                forward(changed, out, in, stream);
                              }));
  faults.push_back(step_fault("rank-calls-twice", "one rank makes an extra collective", 3,
                              [](const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream) {
                                forward(call, out, in, stream);
                                if (call.stage == "query") forward(call, out, in, stream);
                              }));
  return faults;
}

}  // namespace

std::vector<Fault> collective_faults() {
  std::vector<Fault> faults = placement_faults();
  for (Fault& fault : step_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace mladcp
