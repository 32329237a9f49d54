#include "harness/text_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(std::string_view flag, std::string_view text, const std::string& remedy) {
  throw InvalidArgument(fmt::format("{} is {}, {}", flag, in_quotes(text), remedy));
}

template <typename T>
void read_integer(std::string_view flag, std::string_view text, T& value) {
  if (is_number(text, value)) return;
  refuse(flag, text,
         fmt::format("must be a whole number{} that {} bits hold",
                     std::is_unsigned_v<T> ? " of at least 0" : "", 8 * sizeof(T)));
}

template <typename T>
void read_real(std::string_view flag, std::string_view text, T& value) {
  if (is_number(text, value)) return;
  refuse(flag, text, "must be " + number_of<T>());
}

template <typename T>
void read_list(std::string_view flag, std::string_view text, std::vector<T>& values) {
  values.clear();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    const std::string place = fmt::format("{} {}: entry {}", flag, in_quotes(text), values.size());
    if (entry.empty())
      refuse(place, entry, "must not be empty: one comma between two values, none at the ends");
    read_value(place, entry, values.emplace_back());
    begin = end + 1;
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return shown;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 40;
  if (text.size() <= kMost) return fmt::format("'{}'", printable(text));
  return fmt::format("'{}...'", printable(text.substr(0, kMost - 3)));
}

void parse_name(std::string_view text, DType& value) {
  try {
    value = dtype_from_name(text);
  } catch (const InvalidArgument&) {  // it lists dtypes that no setting takes
    throw InvalidArgument(fmt::format(
        "is {}, must be bf16 or fp8 for a cache, bf16 or fp32 for a reduction", in_quotes(text)));
  }
}
void parse_name(std::string_view text, QueryForm& value) { value = query_form_from_name(text); }
void parse_name(std::string_view text, Combine& value) { value = combine_from_name(text); }
void parse_name(std::string_view text, Phase& value) { value = phase_from_name(text); }

void read_value(std::string_view flag, std::string_view text, std::string& value) {
  if (text.empty()) refuse(flag, text, "must not be empty: give a value or leave it out");
  value = text;
}

void read_value(std::string_view flag, std::string_view text, bool& value) {
  if (text != "true" && text != "false") refuse(flag, text, "must be true or false");
  value = text == "true";
}

void read_value(std::string_view flag, std::string_view text, std::int64_t& value) {
  read_integer(flag, text, value);
}
void read_value(std::string_view flag, std::string_view text, std::uint64_t& value) {
  read_integer(flag, text, value);
}
void read_value(std::string_view flag, std::string_view text, float& value) {
  read_real(flag, text, value);
}
void read_value(std::string_view flag, std::string_view text, double& value) {
  read_real(flag, text, value);
}

void read_value(std::string_view flag, std::string_view text, DType& value) {
  try {
    parse_name(text, value);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{} {}", flag, error.what()));
  }
}

void read_value(std::string_view flag, std::string_view text, std::vector<std::int64_t>& values) {
  read_list(flag, text, values);
}
void read_value(std::string_view flag, std::string_view text, std::vector<std::string>& values) {
  read_list(flag, text, values);
}

}  // namespace mladcp
