#include "harness/json_output.h"

#include <cstdio>
#include <fstream>

#include "core/error.h"
#include "harness/options.h"

namespace mladcp {

void add_json_option(CLI::App& command, std::string& destination) {
  add_value(command, "--json", destination, "write the report as JSON to FILE, or - for stdout");
}

void expect_writable(const std::string& destination) {
  if (destination.empty() || destination == "-") return;
  if (!std::ofstream(destination, std::ios::binary | std::ios::app)) {
    throw InvalidArgument("--json " + destination + ": cannot be written");
  }
}

void write_json(const std::string& destination, const std::function<std::string()>& text) {
  if (destination.empty()) return;
  const std::string json = text() + "\n";
  if (destination == "-") {
    std::fwrite(json.data(), 1, json.size(), stdout);
    return;
  }
  std::ofstream file(destination, std::ios::binary);
  file << json;
  file.flush();
  if (!file) throw InvalidArgument("--json " + destination + ": cannot be written");
}

}  // namespace mladcp
