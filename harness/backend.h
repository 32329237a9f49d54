// Where ranks compute and how they meet: device, stream and operations of a rank, and the group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/scheduler.h"
#include "harness/group_runner.h"
#include "reference/numerics_profile.h"
#include "reference/prefill_bounds.h"

namespace mladcp {

// The way between the processes of a group, for reports alone: the ranks talk through Collective.
class ProcessLink {
 public:
  virtual ~ProcessLink() = default;
  virtual std::vector<std::string> gather_at_root(std::string_view mine) = 0;
  virtual int rank_in_group() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device& device(int rank) = 0;
  virtual Stream stream(int rank) = 0;
  virtual Ops ops(int rank) = 0;
  // What its schedules for such a step are built for: SMs, block, overhead.
  virtual ScheduleParams schedule_params(const ScheduleShape& shape) const = 0;
  // How decode attention of q_len rows a request rounds here, for this configuration: what its
  // bounds follow from.
  virtual const NumericsProfile& numerics(const ParallelConfig& config,
                                          std::int64_t q_len) const = 0;
  // The same of chunked prefill: fp32 arithmetic on bf16 keys and values unless a backend says
  // otherwise.
  virtual PrefillFormats prefill_formats() const { return {}; }

  // How often a reduce-scatter of `ranks` ranks rounds to its dtype: once, or at every hop.
  virtual int sum_roundings(int /*ranks*/) const { return 1; }

  // Runs body once for every rank of a group that this process holds, each on its own thread, and
  // waits for all; the first real error is rethrown. All ranks live here unless a backend says
  // otherwise. Unsupported names a collective this backend lacks.
  virtual void run_group(const GroupOptions& options, CallLog& log,
                         const std::function<void(Collective&)>& body) {
    run_group_in_process(options, device(0), log, body);
  }
  // What each process of the job hands in, by rank, at every one of them, for all to judge alike.
  // This process' alone where all ranks live here, or where the calls themselves are compared.
  virtual std::vector<std::string> gather_everywhere(std::string_view mine) {
    return {std::string(mine)};
  }
  // Ranks of other processes: the bytes every process hands in, by rank, at the process that
  // judges; empty elsewhere. Null when all ranks live here.
  virtual ProcessLink* link() { return nullptr; }
};

// For a device ("cpu", "cuda") and a collective ("in_process", "fake", "mpi", "nccl"), where this
// build and machine have them; `ranks` of a group, timeout of a meeting. Throws Unsupported naming
// what is missing.
std::unique_ptr<Backend> make_backend(std::string_view device, std::string_view collective,
                                      int ranks, double timeout_s);

}  // namespace mladcp
