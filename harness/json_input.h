// JSON of a file that anybody may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace mladcp {

// Printing a value, as messages do, recurses into it: what nests deeper is refused before anyone
// runs out of stack. Our own files nest to 4.
constexpr int kDeepestJson = 64;

// InvalidArgument, led by `where`: text that is no JSON, numbers beyond a double, deeper nesting.
template <typename Json>
Json parse_json(std::string_view text, std::string_view where) {
  const auto not_too_deep = [&](int depth, typename Json::parse_event_t, Json&) {
    if (depth <= kDeepestJson) return true;
    throw InvalidArgument(std::string(where) + ": JSON nests deeper than " +
                          std::to_string(kDeepestJson));
  };
  try {
    return Json::parse(text, not_too_deep);
  } catch (const typename Json::exception& error) {
    throw InvalidArgument(std::string(where) + ": not JSON: " + error.what());
  }
}

}  // namespace mladcp
