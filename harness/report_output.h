// What a verb gives out: its report on the screen and, with --json FILE|-, as JSON; other files.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mladcp {

void add_json_option(CLI::App& command, std::string& destination);

// InvalidArgument naming flag, path and reason when the file cannot be written, or is one of the
// `others` that the same command names (or ""): asked before a long run, not after it. Leaves no
// file. Nothing to ask of "" and "-".
void expect_writable(const std::string& flag, const std::string& path,
                     const std::vector<std::string>& others = {});

// Replaces the file at once, when all is written: what was there stays where that fails. Links are
// followed and kept; pipes, devices and open descriptors (/dev/stdout) are written as they are,
// after what was printed. Error naming flag, path and reason.
void write_file(const std::string& flag, const std::string& path, const std::string& text);

// `print` puts the report on the screen, where "-" puts the JSON in its place. The screen comes
// first: a full disk costs the file alone. `json` is called where JSON is asked for.
void give_report(const std::string& destination, const std::function<void()>& print,
                 const std::function<std::string()>& json);

}  // namespace mladcp
