// Request lengths from the traces of real services: CSV with a header line.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mladcp {

// "FILE" or "FILE:COLUMN". Without a column the first of ContextTokens, input_tokens in the header.
// A name that exists as a file is a file, colons and all. InvalidArgument when one half is empty.
struct LengthsSource {
  std::string path;
  std::string column;
};

LengthsSource parse_lengths_source(std::string_view text);

// The first `batch` rows; with a seed, `batch` distinct rows that the seed picks, in its order. The
// same seed picks the same rows everywhere. InvalidArgument names file, line and column: a file
// that cannot be read, a column that is unknown or named twice, a row of more or fewer fields than
// the header, a value outside 0 .. 2147483647, fewer rows than batch.
std::vector<std::int64_t> read_lengths(const LengthsSource& source, std::int64_t batch,
                                       std::optional<std::uint64_t> seed = std::nullopt);

// The same from an open stream; source.path only names it in messages.
std::vector<std::int64_t> read_lengths(std::istream& csv, const LengthsSource& source,
                                       std::int64_t batch,
                                       std::optional<std::uint64_t> seed = std::nullopt);

}  // namespace mladcp
