#include "harness/scenario_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "harness/input_file.h"
#include "harness/lengths.h"
#include "harness/options.h"
#include "harness/scenario_draft.h"

namespace mladcp {
namespace {

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

struct FlagAdder {
  CLI::App& command;
  std::map<std::string, CLI::Option*>& flags;

  template <typename T>
  void operator()(const char* key, const T&, const char* text) {
    const std::string help = text;  // not what CLI11 takes a char pointer for: a destination
    flags[key] = std::is_same_v<T, bool>
                     ? command.add_flag(flag_of(key), help)
                     : command.add_option(flag_of(key), help)->type_name(placeholder<T>());
  }
};

struct FlagReader {
  const std::map<std::string, CLI::Option*>& flags;
  ScenarioDraft::Keys given = {};

  template <typename T>
  void operator()(const char* key, T& value, const char*) {
    const CLI::Option& option = *flags.at(key);
    if (option.count() == 0) return;
    read_value(flag_of(key), option.results().back(), value);
    given.insert(key);
  }
};

template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(name(value));
  } else {
    return fmt::format("{}", value);
  }
}
template <typename T>
std::string text_of(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

struct FlagWriter {
  std::string line = "mladcp run";

  template <typename T>
  void operator()(const char* key, const T& value, const char*) {
    const std::string text = text_of(value);
    if (std::is_same_v<T, bool>) {
      if (text == "true") line += " " + flag_of(key);
    } else if (!text.empty()) {  // no list is not an empty one
      line += " " + flag_of(key) + " " + text;
    }
  }
};

}  // namespace

std::string command_line(const Scenario& scenario) {
  FlagWriter writer;
  Scenario copy = scenario;
  visit_keys(copy, writer);
  if (copy.seq_lens.empty() && copy.context_lens.empty()) writer.line += " --batch 0";
  return writer.line;
}

ScenarioOptions::ScenarioOptions(CLI::App& command) {
  add_value(command, "--scenario", file_,
            "JSON file with any of these settings, or the report of a run");
  ScenarioDraft draft;
  FlagAdder add{command, flags_};
  visit_keys(draft, add);
}

Scenario ScenarioOptions::resolve() const {
  ScenarioDraft draft;
  if (!file_.empty()) read_json(draft, read_file(file_), file_);
  FlagReader read{flags_};
  visit_keys(draft, read);
  accept(draft, read.given);
  return complete(draft);
}

std::vector<std::string> ScenarioOptions::input_files() const {
  std::vector<std::string> files = {file_};
  if (const CLI::Option* lengths = flags_.at("lengths"); lengths->count() > 0) {
    files.push_back(parse_lengths_source(lengths->as<std::string>()).path);
  }
  return files;
}

}  // namespace mladcp
