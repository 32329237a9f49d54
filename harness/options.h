// Flags of every verb, all read by harness/text_values.h.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "harness/text_values.h"

namespace mladcp {

// What --help shows in a value's place.
template <typename T>
constexpr const char* placeholder() {
  if (std::is_floating_point_v<T>) return "NUMBER";
  if (std::is_integral_v<T>) return "INT";
  if (std::is_same_v<T, std::vector<std::int64_t>>) return "INT,...";
  if (std::is_same_v<T, std::vector<std::string>>) return "NAME,...";
  return "TEXT";
}

template <typename T>
T& emplaced(T& value) {
  return value;
}
template <typename T>
T& emplaced(std::optional<T>& value) {
  return value.emplace();
}

// --flag VALUE into a T, or an optional<T> that stays empty without the flag.
template <typename Destination>
void add_value(CLI::App& command, const std::string& flag, Destination& destination,
               const std::string& help) {
  using T = std::remove_reference_t<decltype(emplaced(destination))>;
  const auto read = [flag, &destination](const CLI::results_t& texts) {
    read_value(flag, texts.front(), emplaced(destination));
    return true;
  };
  command.add_option(flag, read, help)->type_name(placeholder<T>());
}

// One or more arguments that follow no flag.
inline void add_values(CLI::App& command, const std::string& name,
                       std::vector<std::string>& destination, const std::string& help) {
  const auto read = [name, &destination](const CLI::results_t& texts) {
    for (const std::string& text : texts) read_value(name, text, destination.emplace_back());
    return true;
  };
  constexpr int kAny = CLI::detail::expected_max_vector_size;
  command.add_option(name, read, help)->expected(kAny)->required()->type_name("FILE");
}

}  // namespace mladcp
