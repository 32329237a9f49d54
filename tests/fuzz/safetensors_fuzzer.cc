// libFuzzer target: any bytes are a file of tensors or an InvalidArgument, never anything else.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "core/error.h"
#include "harness/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
    const auto file = mladcp::read_safetensors(stream, "fuzz.safetensors");
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : file.tensors) {
      bytes += static_cast<std::size_t>(tensor.view().bytes());
    }
    if (bytes > size) __builtin_trap();  // never more than the file holds
  } catch (const mladcp::InvalidArgument&) {
  }
  return 0;
}
