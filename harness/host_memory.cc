#include "harness/host_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/error.h"

namespace mladcp {
namespace {

double bytes_of_machine() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

double least_host_bytes(const Scenario& scenario) {
  if (scenario.phase == Phase::kPrefill) return 0.0;
  if (scenario.device != "cpu" || scenario.collective != "in_process") return 0.0;
  const ParallelConfig& config = scenario.parallel;
  const MlaDims dims = scenario.model_config().dims;
  const auto n = static_cast<double>(config.dcp);
  const bool gathers = config.dcp > 1;
  const double query = gathers ? (config.quantized_query() ? 1.0 : 2.0) : 0.0;
  const double lses = gathers && config.combine == Combine::kAllGatherReduceScatter ? n : 0.0;
  const double of_head =
      query * static_cast<double>(dims.row()) + 2.0 * static_cast<double>(dims.latent) + 4.0 * lses;
  const double rows =
      static_cast<double>(scenario.seq_lens.size()) * static_cast<double>(scenario.q_len);
  return 2.0 * n * rows * static_cast<double>(config.gathered_heads()) * of_head;
}

void expect_host_memory(const Scenario& scenario) {
  const double least = least_host_bytes(scenario);
  const double present = bytes_of_machine();
  if (least <= present) return;
  throw InvalidArgument(fmt::format(
      "tp = {}, dcp = {}, heads = {}, seq_lens of {} entries: a decode step of all ranks "
      "would take at least {:.0f} GB, and this machine has {:.0f}; use fewer ranks, "
      "heads or requests, or plan, which runs nothing",
      scenario.parallel.tp, scenario.parallel.dcp, scenario.parallel.heads,
      scenario.seq_lens.size(), least * 1e-9, present * 1e-9));
}

}  // namespace mladcp
