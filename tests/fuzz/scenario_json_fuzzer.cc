// libFuzzer target: any bytes are a scenario or an InvalidArgument, never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "harness/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const mladcp::Scenario scenario = mladcp::scenario_from_json(text, "fuzz.json");
    mladcp::validate(scenario);
    // What was accepted must survive the way there and back.
    const std::string json = mladcp::to_json(scenario);
    if (mladcp::to_json(mladcp::scenario_from_json(json, "copy.json")) != json) __builtin_trap();
  } catch (const mladcp::InvalidArgument&) {
  }
  return 0;
}
