// Starts the ranks of one DCP group in this process, with real or with fake peers.
#pragma once

#include <functional>
#include <string_view>

#include "collectives/call_log.h"
#include "core/collective.h"
#include "core/device.h"

namespace mladcp {

struct GroupOptions {
  std::string_view collective = "in_process";
  int world_size = 1;
  double timeout_s = 60.0;
  bool validate = false;  // compare the ranks' calls also where the collective does not
};

// Runs body(collective) once for every rank this process simulates, each on its own thread, and
// waits for all. The first real error is rethrown here. Unsupported names a collective this build
// lacks.
void run_group_in_process(const GroupOptions& options, Device& device, CallLog& log,
                          const std::function<void(Collective&)>& body);

}  // namespace mladcp
