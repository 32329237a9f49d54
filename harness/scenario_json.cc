#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "harness/json_input.h"
#include "harness/scenario_draft.h"
#include "harness/text_values.h"

namespace mladcp {
namespace {

using Json = nlohmann::ordered_json;

struct Writer {
  Json json = Json::object();

  template <typename T>
  void operator()(const char* key, const T& value, const char*) {
    if constexpr (std::is_enum_v<T>) {
      json[key] = std::string(name(value));
    } else {
      json[key] = value;
    }
  }
};

class Reader {
 public:
  Reader(Json json, std::string source) : json_(std::move(json)), source_(std::move(source)) {}

  template <typename T>
  void operator()(const char* key, T& value, const char*) {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    try {
      parse(*found, value);
    } catch (const InvalidArgument& error) {
      fail(key, error.what());
    }
    json_.erase(found);
    given_.insert(key);
  }

  // The keys that were there.
  const ScenarioDraft::Keys& expect_all_read() const {
    if (!json_.empty()) fail(json_.begin().key(), unknown());
    return given_;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& problem) const {
    throw InvalidArgument(source_ + ": key '" + key + "': " + problem);
  }

  static const char* unknown() {
    return "this key is unknown; keys are the flags of mladcp run --help, page_size for "
           "--page-size";
  }

  [[noreturn]] static void refuse(const Json& json, const std::string& wanted) {
    throw InvalidArgument(fmt::format("is {}, must be {}", in_quotes(json.dump()), wanted));
  }

  static std::string text(const Json& json) {
    if (!json.is_string()) refuse(json, "a string, in quotes");
    auto text = json.get<std::string>();
    if (text.empty()) throw InvalidArgument("must not be empty");
    if (text.find('\0') != std::string::npos) {
      throw InvalidArgument("is " + in_quotes(text) + ", must not hold a NUL character");
    }
    return text;
  }
  static void parse(const Json& json, std::string& value) { value = text(json); }
  template <typename Enum>
  static std::enable_if_t<std::is_enum_v<Enum>> parse(const Json& json, Enum& value) {
    parse_name(text(json), value);
  }
  static void parse(const Json& json, bool& value) {
    if (!json.is_boolean()) refuse(json, "true or false");
    value = json.get<bool>();
  }
  // nlohmann converts true to 1 without a word, and what no float holds to anything.
  static void parse(const Json& json, float& value) {
    if (!json.is_number()) refuse(json, number_of<float>());
    const double wide = std::abs(json.get<double>());
    using Limits = std::numeric_limits<float>;
    if (wide > Limits::max() || (wide > 0 && wide < Limits::denorm_min())) {
      refuse(json, number_of<float>());
    }
    value = json.get<float>();
  }
  static void parse(const Json& json, double& value) {
    if (!json.is_number()) refuse(json, number_of<double>());
    value = json.get<double>();
  }
  static void parse(const Json& json, std::int64_t& value) {
    const auto read = integer_in(json, INT64_MIN, INT64_MAX);
    if (!read) refuse(json, "a whole number that 64 bits hold");
    value = *read;
  }
  static void parse(const Json& json, std::uint64_t& value) {
    if (!json.is_number_unsigned()) refuse(json, "a whole number from 0 to 2^64 - 1");
    value = json.get<std::uint64_t>();
  }
  template <typename T>
  static void parse(const Json& json, std::vector<T>& values) {
    if (!json.is_array()) refuse(json, "an array, in brackets");
    values.clear();
    for (const Json& entry : json) parse(entry, values.emplace_back());
  }

  Json json_;
  std::string source_;
  ScenarioDraft::Keys given_;
};

bool is_report(const Json& json) {
  return json.is_object() && (json.contains("schema") || json.contains("scenario"));
}

bool has_default_workspace(const Scenario& scenario) {
  try {
    return scenario.workspace_rows == default_workspace(scenario.parallel);
  } catch (const InvalidArgument&) {  // no default for what flags may still put right
    return false;
  }
}

// A report has every key. A seed that was asked for would pick other rows of a trace; heads that
// were would stay with another model, a workspace with another number of ranks, and a list of new
// tokens with other lengths.
void forget_defaults(Scenario& scenario, ScenarioDraft::Keys& given) {
  if (scenario.seed == Scenario{}.seed) given.erase("seed");
  if (scenario.parallel.heads == scenario.model_config().heads) given.erase("heads");
  if (has_default_workspace(scenario)) {
    scenario.workspace_rows = 0;
    given.erase("workspace");
  }
  std::vector<std::int64_t>& added = scenario.new_tokens;
  const bool alike =
      std::adjacent_find(added.begin(), added.end(), std::not_equal_to<>()) == added.end();
  if (!added.empty() && alike) added.resize(1);
}

// Of a report; later versions may mean another thing by the same key.
Json scenario_of_report(const Json& report, std::string_view source) {
  if (!report.contains("schema")) {
    throw InvalidArgument(fmt::format(
        "{}: key 'scenario' without a schema, as reports have one: give its settings alone",
        source));
  }
  const Json& schema = report["schema"];
  if (schema != "mladcp.run/1" && schema != "mladcp.plan/1") {
    throw InvalidArgument(
        fmt::format("{}: key 'schema': {} is no report with a scenario that this program reads; "
                    "give one of run or plan, mladcp.run/1 or mladcp.plan/1",
                    source, in_quotes(schema.dump())));
  }
  if (report.contains("scenario")) return report["scenario"];
  throw InvalidArgument(
      fmt::format("{}: key 'scenario': missing from the report; make it again", source));
}

}  // namespace

std::string to_json(const Scenario& scenario) {
  Scenario copy = scenario;
  Writer writer;
  visit_keys(copy, writer);
  return writer.json.dump();
}

void read_json(ScenarioDraft& draft, std::string_view text, std::string_view source) {
  auto json = parse_json<Json>(text, source);
  const bool report = is_report(json);
  if (report) json = scenario_of_report(json, source);
  if (!json.is_object()) {
    throw InvalidArgument(fmt::format("{}: expected one JSON object", source));
  }
  Reader reader(std::move(json), std::string(source));
  visit_keys(draft, reader);
  ScenarioDraft::Keys given = reader.expect_all_read();
  try {
    if (report) forget_defaults(draft.scenario, given);
    accept(draft, given);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
}

}  // namespace mladcp
