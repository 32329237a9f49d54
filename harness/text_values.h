// Values as text: what follows a flag. The whole text is the value, or InvalidArgument names the
// flag, the text and what was expected.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "core/config.h"
#include "harness/scenario.h"

namespace mladcp {

// Its control characters as \xNN: input must not write on a terminal, or end a message.
std::string printable(std::string_view text);

// At most 40 characters of it, in quotes, printable: for messages.
std::string in_quotes(std::string_view text);

// "a number that 32 bits hold, ...", with its smallest and largest magnitude.
template <typename T>
std::string number_of() {
  using Limits = std::numeric_limits<T>;
  return fmt::format("a number that {} bits hold, 0 or of a magnitude from {:.1e} to {:.1e}",
                     8 * sizeof(T), Limits::min(), Limits::max());
}

// False unless all of the text is a number that T holds.
template <typename T>
bool is_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Names of the vocabulary, in files as after flags. InvalidArgument lists what is known: "phase =
// 'x': use one of ...", of a cache or a reduction "is 'int8', must be ...".
void parse_name(std::string_view text, DType& value);
void parse_name(std::string_view text, QueryForm& value);
void parse_name(std::string_view text, Combine& value);
void parse_name(std::string_view text, Phase& value);

void read_value(std::string_view flag, std::string_view text, std::string& value);  // not empty
void read_value(std::string_view flag, std::string_view text, bool& value);         // true, false
void read_value(std::string_view flag, std::string_view text, std::int64_t& value);
void read_value(std::string_view flag, std::string_view text, std::uint64_t& value);
void read_value(std::string_view flag, std::string_view text, float& value);
void read_value(std::string_view flag, std::string_view text, double& value);

void read_value(std::string_view flag, std::string_view text, DType& value);
template <typename Enum>
std::enable_if_t<std::is_enum_v<Enum>> read_value(std::string_view, std::string_view text,
                                                  Enum& value) {
  parse_name(text, value);  // its messages name the setting
}

// Entries between commas, at least one, none empty.
void read_value(std::string_view flag, std::string_view text, std::vector<std::int64_t>& values);
void read_value(std::string_view flag, std::string_view text, std::vector<std::string>& values);

}  // namespace mladcp
