// JSON of a file that anybody may have written.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace mladcp {

// Printing a value, as messages do, recurses into it: what nests deeper is refused before anyone
// runs out of stack. Our own files nest to 4.
constexpr int kDeepestJson = 64;

// InvalidArgument, led by `where`: text that is no JSON, numbers beyond a double, deeper nesting, a
// key twice in one object (nlohmann keeps the last and says nothing).
template <typename Json>
Json parse_json(std::string_view text, std::string_view where) {
  using ParseEvent = typename Json::parse_event_t;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(std::string(where) + ": " + what);
  };
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto strict = [&](int depth, ParseEvent event, Json& parsed) {
    if (depth > kDeepestJson) refuse("JSON nests deeper than " + std::to_string(kDeepestJson));
    if (event == ParseEvent::object_start) keys.emplace_back();
    if (event == ParseEvent::object_end) keys.pop_back();
    if (event == ParseEvent::key &&
        !keys.back().insert(parsed.template get<std::string>()).second) {
      refuse("key " + parsed.dump() + " is named twice: keep one");
    }
    return true;
  };
  try {
    return Json::parse(text, strict);
  } catch (const typename Json::exception& error) {
    std::string problem = error.what();
    // Of one line `where` may have the number, its number in a file.
    constexpr std::string_view kLine = "line 1, ";
    const std::size_t at = problem.find(kLine);
    if (at != std::string::npos && text.find('\n') == std::string_view::npos) {
      problem.erase(at, kLine.size());
    }
    throw InvalidArgument(std::string(where) + ": not JSON: " + problem);
  }
}

// The whole number in [least, most] that it is, or nothing: get() turns 1.5 and true into 1, and
// 2^63 into a negative number.
template <typename Json>
std::optional<std::int64_t> integer_in(const Json& json, std::int64_t least, std::int64_t most) {
  if (!json.is_number_integer()) return std::nullopt;
  const auto value = json.template get<std::int64_t>();
  const bool wrapped = json.is_number_unsigned() && value < 0;
  if (wrapped || value < least || value > most) return std::nullopt;
  return value;
}

}  // namespace mladcp
