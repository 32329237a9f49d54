#include "harness/group_runner.h"

#include <chrono>
#include <string>

#include "collectives/fake_collective.h"
#include "collectives/in_process_group.h"
#include "collectives/recording_collective.h"
#include "core/error.h"

namespace mladcp {

void run_group_in_process(const GroupOptions& options, Device& device, CallLog& log,
                          const std::function<void(Collective&)>& body) {
  if (options.collective == "fake") {
    for (int rank = 0; rank < options.world_size; ++rank) {
      FakeCollective fake(rank, options.world_size, log);
      body(fake);
    }
    return;
  }
  if (options.collective != "in_process") {
    throw Unsupported("collective " + std::string(options.collective) +
                      " does not run here; use in_process or fake");
  }
  InProcessOptions group_options;
  group_options.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000.0));
  InProcessGroup group(options.world_size, group_options, device);
  group.run([&](Collective& collective) {
    RecordingCollective recorded(collective, log);
    body(recorded);
  });
}

}  // namespace mladcp
