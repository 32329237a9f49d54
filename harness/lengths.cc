#include "harness/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.h"
#include "harness/input_file.h"
#include "harness/text_values.h"

namespace mladcp {
namespace {

std::vector<std::string_view> split_commas(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

struct Column {
  std::size_t index;
  std::string name;
  std::size_t columns;  // of the header
};

Column find_column(const LengthsSource& source, const std::string& header) {
  const std::vector<std::string_view> names = split_commas(header);
  const std::vector<std::string> wanted =
      source.column.empty() ? std::vector<std::string>{"ContextTokens", "input_tokens"}
                            : std::vector<std::string>{source.column};
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) continue;
    if (std::find(found + 1, names.end(), name) != names.end()) {
      throw InvalidArgument(
          fmt::format("{}:1: column {} stands there twice; rename one", source.path, name));
    }
    return {static_cast<std::size_t>(found - names.begin()), name, names.size()};
  }
  const bool quotes = header.find('"') != std::string::npos;
  const std::string held = printable(fmt::format("{}", fmt::join(names, ", ")));
  throw InvalidArgument(fmt::format("{}:1: no column {}; the header has {:.200}; {}", source.path,
                                    fmt::join(wanted, " or "), held,
                                    quotes ? "write it without quotes" : "give FILE:COLUMN"));
}

std::int64_t parse_length(const LengthsSource& source, std::int64_t line, const Column& column,
                          const std::string& text) {
  const std::vector<std::string_view> fields = split_commas(text);
  if (fields.size() != column.columns) {
    throw InvalidArgument(fmt::format(
        "{}:{}: has {} fields, the header {}; one comma between two fields, none inside of one",
        source.path, line, fields.size(), column.columns));
  }
  const std::string_view field = fields[column.index];
  std::int64_t value = -1;
  if (!is_number(field, value) || value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(fmt::format("{}:{}: column {} holds {}, must be a length 0..2147483647",
                                      source.path, line, column.name, in_quotes(field)));
  }
  return value;
}

}  // namespace

LengthsSource parse_lengths_source(std::string_view text) {
  const std::string whole(text);
  const std::size_t colon = whole.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::exists(whole, error)) return {whole, ""};
  if (colon == 0 || colon + 1 == whole.size()) {
    throw InvalidArgument(fmt::format("lengths = '{}': give FILE or FILE:COLUMN", whole));
  }
  return {whole.substr(0, colon), whole.substr(colon + 1)};
}

std::vector<std::int64_t> read_lengths(const LengthsSource& source, std::int64_t batch,
                                       std::optional<std::uint64_t> seed) {
  std::istringstream file(read_file(source.path));
  return read_lengths(file, source, batch, seed);
}

std::vector<std::int64_t> read_lengths(std::istream& csv, const LengthsSource& source,
                                       std::int64_t batch, std::optional<std::uint64_t> seed) {
  if (batch < 1) {
    throw InvalidArgument(fmt::format("batch is {}, must be at least 1", batch));
  }
  std::string text;
  if (!csv || !std::getline(csv, text)) {
    throw InvalidArgument(
        fmt::format("lengths file '{}' is empty; give a CSV file with a header line", source.path));
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // as spreadsheets write it
  if (text.rfind(kByteOrderMark, 0) == 0) text.erase(0, kByteOrderMark.size());
  const Column column = find_column(source, text);
  std::vector<std::int64_t> lengths;
  for (std::int64_t line = 2; std::getline(csv, text); ++line) {
    if (text.empty() || text == "\r") continue;
    lengths.push_back(parse_length(source, line, column, text));
    if (!seed && static_cast<std::int64_t>(lengths.size()) == batch) return lengths;
  }
  if (static_cast<std::int64_t>(lengths.size()) < batch) {
    throw InvalidArgument(fmt::format("{}: column {} has {} rows, batch asks for {}; lower batch",
                                      source.path, column.name, lengths.size(), batch));
  }
  // A partial Fisher-Yates shuffle: the generator is the same everywhere, the standard
  // distributions are not.
  std::mt19937_64 random(*seed);
  for (std::size_t i = 0; i < static_cast<std::size_t>(batch); ++i) {
    std::swap(lengths[i], lengths[i + random() % (lengths.size() - i)]);
  }
  lengths.resize(static_cast<std::size_t>(batch));
  return lengths;
}

}  // namespace mladcp
