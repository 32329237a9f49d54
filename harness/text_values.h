// Values as text: what follows a flag. The whole text is the value, or InvalidArgument names the
// flag, the text and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "harness/scenario.h"

namespace mladcp {

// Its control characters as \xNN: input must not write on a terminal, or end a message.
std::string printable(std::string_view text);

// At most 40 characters of it, in quotes, printable: for messages.
std::string in_quotes(std::string_view text);

void read_value(std::string_view flag, std::string_view text, std::string& value);  // not empty
void read_value(std::string_view flag, std::string_view text, bool& value);         // true, false
void read_value(std::string_view flag, std::string_view text, std::int64_t& value);
void read_value(std::string_view flag, std::string_view text, std::uint64_t& value);
void read_value(std::string_view flag, std::string_view text, float& value);
void read_value(std::string_view flag, std::string_view text, double& value);

// Names of the vocabulary; their own messages list what is known.
void read_value(std::string_view flag, std::string_view text, DType& value);
void read_value(std::string_view flag, std::string_view text, QueryForm& value);
void read_value(std::string_view flag, std::string_view text, Combine& value);
void read_value(std::string_view flag, std::string_view text, Phase& value);

// Entries between commas, at least one, none empty.
void read_value(std::string_view flag, std::string_view text, std::vector<std::int64_t>& values);
void read_value(std::string_view flag, std::string_view text, std::vector<std::string>& values);

}  // namespace mladcp
