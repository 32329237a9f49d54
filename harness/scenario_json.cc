#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "harness/json_input.h"
#include "harness/scenario.h"

namespace mladcp {
namespace {

using Json = nlohmann::ordered_json;

// One list of keys serves writer and reader, so that neither can know a key the other does not.
template <typename Visitor>
void visit_keys(Scenario& scenario, Visitor& visit) {
  ParallelConfig& parallel = scenario.parallel;
  visit("model", scenario.model);
  visit("heads", parallel.heads);
  visit("tp", parallel.tp);
  visit("dcp", parallel.dcp);
  visit("group", scenario.group);
  visit("interleave", parallel.interleave);
  visit("page_size", parallel.page_size);
  visit("kv_dtype", parallel.kv_dtype);
  visit("query", parallel.query);
  visit("q_scale", parallel.q_scale);
  visit("k_scale", parallel.k_scale);
  visit("combine", parallel.combine);
  visit("reduce_dtype", parallel.reduce_dtype);
  visit("project_before_merge", parallel.project_before_merge);
  visit("replicate_query", parallel.replicate_query);
  visit("phase", scenario.phase);
  visit("seq_lens", scenario.seq_lens);
  visit("q_len", scenario.q_len);
  visit("context_lens", scenario.context_lens);
  visit("new_tokens", scenario.new_tokens);
  visit("workspace", scenario.workspace_rows);
  visit("audit", scenario.audit);
  visit("device", scenario.device);
  visit("collective", scenario.collective);
  visit("seed", scenario.seed);
  visit("timeout", scenario.timeout_s);
  visit("validate", scenario.validate);
  visit("probe", scenario.probes);
}

struct Writer {
  Json json = Json::object();

  template <typename T>
  void operator()(const char* key, const T& value) {
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
  void operator()(const char* key, T& value) {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    try {
      parse(*found, value);
    } catch (const nlohmann::json::exception&) {
      fail(key, found->dump() + " has the wrong type");
    } catch (const InvalidArgument& error) {
      fail(key, error.what());
    }
    json_.erase(found);
  }

  void expect_all_read() const {
    if (!json_.empty()) fail(json_.begin().key(), "this key is unknown");
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& problem) const {
    throw InvalidArgument(source_ + ": key '" + key + "': " + problem);
  }

  static void parse(const Json& json, DType& value) {
    value = dtype_from_name(json.get<std::string>());
  }
  static void parse(const Json& json, QueryForm& value) {
    value = query_form_from_name(json.get<std::string>());
  }
  static void parse(const Json& json, Combine& value) {
    value = combine_from_name(json.get<std::string>());
  }
  static void parse(const Json& json, Phase& value) {
    value = phase_from_name(json.get<std::string>());
  }
  static void parse(const Json& json, bool& value) { value = json.get<bool>(); }
  static void parse(const Json& json, std::string& value) { value = json.get<std::string>(); }
  static void parse(const Json& json, float& value) { value = number(json).get<float>(); }
  static void parse(const Json& json, double& value) { value = number(json).get<double>(); }
  static void parse(const Json& json, std::int64_t& value) {
    value = integer(json).get<std::int64_t>();
  }
  static void parse(const Json& json, std::uint64_t& value) {
    if (!json.is_number_unsigned()) throw InvalidArgument(json.dump() + " is no whole number >= 0");
    value = json.get<std::uint64_t>();
  }
  template <typename T>
  static void parse(const Json& json, std::vector<T>& values) {
    if (!json.is_array()) throw InvalidArgument(json.dump() + " is no array");
    values.clear();
    for (const Json& entry : json) parse(entry, values.emplace_back());
  }

  // nlohmann converts 1.5 to 1 and true to 1 without a word.
  static const Json& integer(const Json& json) {
    if (!json.is_number_integer()) throw InvalidArgument(json.dump() + " is no whole number");
    return json;
  }
  static const Json& number(const Json& json) {
    if (!json.is_number()) throw InvalidArgument(json.dump() + " is no number");
    return json;
  }

  Json json_;
  std::string source_;
};

}  // namespace

std::string to_json(const Scenario& scenario) {
  Scenario copy = scenario;
  Writer writer;
  visit_keys(copy, writer);
  return writer.json.dump();
}

Scenario scenario_from_json(std::string_view text, std::string_view source) {
  auto json = parse_json<Json>(text, source);
  if (!json.is_object()) {
    throw InvalidArgument(fmt::format("{}: expected one JSON object", source));
  }
  Scenario scenario;
  const bool heads_given = json.contains("heads");
  Reader reader(std::move(json), std::string(source));
  visit_keys(scenario, reader);
  reader.expect_all_read();
  if (!heads_given) scenario.parallel.heads = scenario.model_config().heads;
  return scenario;
}

}  // namespace mladcp
