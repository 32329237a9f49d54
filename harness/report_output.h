// What a verb gives out: its report on the screen and, with --json FILE|-, as JSON; other files.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace mladcp {

void add_json_option(CLI::App& command, std::string& destination);

// InvalidArgument naming flag, path and reason when the file cannot be written: asked before a long
// run, not after it. Leaves no file. Nothing to ask of "" and "-".
void expect_writable(const std::string& flag, const std::string& path);

// Error naming flag, path and reason where that fails; a file cut short is removed.
void write_file(const std::string& flag, const std::string& path, const std::string& text);

// `print` puts the report on the screen, where "-" puts the JSON in its place. The screen comes
// first: a full disk costs the file alone. `json` is called where JSON is asked for.
void give_report(const std::string& destination, const std::function<void()>& print,
                 const std::function<std::string()>& json);

}  // namespace mladcp
