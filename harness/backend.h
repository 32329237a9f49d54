// Where a simulated or real rank computes: its device, its stream, its operations.
#pragma once

#include <memory>
#include <string_view>

#include "core/config.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/scheduler.h"
#include "reference/numerics_profile.h"

namespace mladcp {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device& device(int rank) = 0;
  virtual Stream stream(int rank) = 0;
  virtual Ops ops(int rank) = 0;
  // What its schedules are built for: SMs, block, overhead.
  virtual ScheduleParams schedule_params() const = 0;
  // How decode attention rounds here, for this configuration: what its bounds follow from.
  virtual const NumericsProfile& numerics(const ParallelConfig& config) const = 0;
};

// "cpu", or "cuda" where this build and machine have it; `ranks` share the machine. Throws
// Unsupported naming what is missing.
std::unique_ptr<Backend> make_backend(std::string_view device, int ranks);

}  // namespace mladcp
