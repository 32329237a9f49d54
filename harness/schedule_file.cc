#include "harness/schedule_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "harness/input_file.h"
#include "harness/json_input.h"
#include "harness/text_values.h"

namespace mladcp {
namespace {

using Json = nlohmann::json;

constexpr const char* kMissing =
    "is missing; give the fields variant, seq_lens, tile_scheduler_metadata and num_splits";

// One object of the file, with its place for messages.
class Reader {
 public:
  Reader(std::string where, const Json& object) : where_(std::move(where)), object_(object) {}

  const Json& field(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail(name, kMissing);
    return *found;
  }

  std::optional<std::int64_t> optional_integer(const char* name, std::int64_t least) const {
    if (!object_.contains(name)) return std::nullopt;
    const std::int64_t value = int32(name, object_[name]);
    if (value < least) {
      fail(name, fmt::format("is {}, must be at least {}", value, least));
    }
    return value;
  }

  std::int32_t int32(const std::string& name, const Json& value) const {
    const auto integer = integer_in(value, INT32_MIN, INT32_MAX);
    if (!integer) {
      fail(name, fmt::format("is {}, must be an integer of 32 bits", in_quotes(value.dump())));
    }
    return static_cast<std::int32_t>(*integer);
  }

  std::vector<std::int32_t> int32_array(const std::string& name, const Json& array) const {
    expect_array(name, array);
    std::vector<std::int32_t> values;
    for (const Json& value : array) {
      values.push_back(int32(fmt::format("{}[{}]", name, values.size()), value));
    }
    return values;
  }

  void expect_array(const std::string& name, const Json& value) const {
    if (!value.is_array())
      fail(name, fmt::format("is {}, must be an array", in_quotes(value.dump())));
  }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw InvalidArgument(fmt::format("{}: {} {}", where_, name, what));
  }

 private:
  std::string where_;
  const Json& object_;
};

ScheduleDialect dialect_of(const Reader& reader) {
  const Json& variant = reader.field("variant");
  if (variant == "dense_fp8_tokens" || variant == "tokens") return ScheduleDialect::kTokens;
  if (variant == "blocks") return ScheduleDialect::kBlocks;
  reader.fail("variant", "is " + variant.dump() + R"(, must be "tokens" or "blocks")");
}

ForeignSchedule schedule_of(const std::string& where, std::int64_t line, const Json& object) {
  if (!object.is_object()) {
    throw InvalidArgument(where +
                          ": is not an object; give the fields variant, seq_lens, "
                          "tile_scheduler_metadata and num_splits");
  }
  const bool own_report = object.contains("gathered") && object["gathered"].is_object();
  const Reader reader(where, own_report ? object["gathered"] : object);

  ForeignSchedule schedule;
  schedule.line = line;
  schedule.dialect = dialect_of(reader);
  schedule.lengths = reader.int32_array("seq_lens", reader.field("seq_lens"));
  for (std::size_t b = 0; b < schedule.lengths.size(); ++b) {
    if (schedule.lengths[b] < 0) {
      reader.fail(fmt::format("seq_lens[{}]", b),
                  fmt::format("is {}, must be at least 0", schedule.lengths[b]));
    }
  }
  schedule.num_splits = reader.int32_array("num_splits", reader.field("num_splits"));
  const Json& rows = reader.field("tile_scheduler_metadata");
  reader.expect_array("tile_scheduler_metadata", rows);
  for (const Json& row : rows) {
    const std::string name = fmt::format("tile_scheduler_metadata[{}]", schedule.parts.size());
    const std::vector<std::int32_t> numbers = reader.int32_array(name, row);
    if (numbers.size() < 5) {
      reader.fail(name, fmt::format("has {} numbers, must have at least 5: begin request, begin, "
                                    "end request, end, begin split",
                                    numbers.size()));
    }
    schedule.parts.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]});
  }
  schedule.block = reader.optional_integer("block_n", 1).value_or(64);
  schedule.overhead_blocks = reader.optional_integer("fixed_overhead", 0).value_or(5);
  schedule.heads_times_q = reader.optional_integer("heads_times_q", 1);
  schedule.num_sm_parts = reader.optional_integer("num_sm_parts", 1);
  schedule.num_sms = reader.optional_integer("num_sms", 1);
  return schedule;
}

}  // namespace

std::vector<ForeignSchedule> read_schedules(const std::string& path) {
  return parse_schedules(read_file(path), path);
}

std::vector<ForeignSchedule> parse_schedules(const std::string& text, const std::string& path) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw InvalidArgument("schedule file '" + path + "' is empty");
  }

  // One object a line exactly when the first line is an object of its own.
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const std::string first = text.substr(begin, text.find('\n', begin) - begin);
  if (!Json::accept(first)) return {schedule_of(path, 1, parse_json<Json>(text, path))};

  std::vector<ForeignSchedule> schedules;
  std::istringstream lines(text);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    schedules.push_back(schedule_of(where, number, parse_json<Json>(line, where)));
  }
  return schedules;
}

}  // namespace mladcp
