// libFuzzer target: any bytes are a scenario or an InvalidArgument, never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "harness/scenario_draft.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    mladcp::ScenarioDraft draft;
    mladcp::read_json(draft, text, "fuzz.json");
    mladcp::validate(draft.scenario);  // not completed: that would read any file of the machine
    // What was accepted must survive the way there and back.
    const std::string json = mladcp::to_json(draft.scenario);
    mladcp::ScenarioDraft copy;
    mladcp::read_json(copy, json, "copy.json");
    if (mladcp::to_json(copy.scenario) != json) __builtin_trap();
  } catch (const mladcp::InvalidArgument&) {
  }
  return 0;
}
