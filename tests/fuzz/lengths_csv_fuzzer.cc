// libFuzzer target: any bytes are a list of lengths or an InvalidArgument, never anything else.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "core/error.h"
#include "harness/lengths.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::int64_t batch = data[0] % 8;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(size)}) {
    try {
      std::istringstream csv(text);
      const auto lengths = mladcp::read_lengths(csv, {"fuzz.csv", ""}, batch, seed);
      if (static_cast<std::int64_t>(lengths.size()) != batch) __builtin_trap();
      for (const std::int64_t length : lengths) {
        if (length < 0) __builtin_trap();
      }
    } catch (const mladcp::InvalidArgument&) {
    }
  }
  return 0;
}
