// The program as a process.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace mladcp {

// A run of few rows, four ranks.
inline constexpr const char* kSmall =
    "run --model tiny --heads 8 --tp 4 --dcp 4 --seq-lens 1,63,130 ";

struct Outcome {
  int status = -1;     // exit status; -1 when a signal ended it
  std::string output;  // both streams
};

// The built mladcp with these arguments, as a shell takes them; `before` is what stands before it,
// variables or what is piped into it.
inline Outcome run_program(const std::string& arguments, const std::string& before = "") {
  const std::string command = before + MLADCP_PROGRAM + " " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace mladcp
