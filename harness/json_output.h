// --json FILE|- of every verb.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace mladcp {

void add_json_option(CLI::App& command, std::string& destination);

// InvalidArgument when the file cannot be written: asked before a long run, not after it.
void expect_writable(const std::string& destination);

// Writes text() to the file, or to standard output for "-"; nothing when destination is empty.
// InvalidArgument names a file that cannot be written.
void write_json(const std::string& destination, const std::function<std::string()>& text);

}  // namespace mladcp
