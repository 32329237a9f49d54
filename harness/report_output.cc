#include "harness/report_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "harness/options.h"

namespace mladcp {
namespace {

std::string refusal(const std::string& flag, const std::string& path, int reason) {
  return fmt::format("{} {} cannot be written: {}; name another file", flag, path,
                     std::strerror(reason));
}

// 0, or why not. A pipe is not opened: its reader would take that for all there is.
int why_unwritable(const std::string& path) {
  const int fresh = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fresh >= 0) {
    close(fresh);
    unlink(path.c_str());
    return 0;
  }
  if (errno != EEXIST) return errno;
  if (std::error_code none; std::filesystem::is_directory(path, none)) return EISDIR;
  // Gone again: another process of the job has asked the same.
  return access(path.c_str(), W_OK) == 0 || errno == ENOENT ? 0 : errno;
}

// 0, or why not.
int write_all(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return errno;
  int reason = 0;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) reason = errno;
  if (std::fclose(file) != 0 && reason == 0) reason = errno;
  return reason;
}

}  // namespace

void add_json_option(CLI::App& command, std::string& destination) {
  add_value(command, "--json", destination, "write the report as JSON to FILE, or - for stdout");
}

void expect_writable(const std::string& flag, const std::string& path) {
  if (path.empty() || path == "-") return;
  const int reason = why_unwritable(path);
  if (reason != 0) throw InvalidArgument(refusal(flag, path, reason));
}

void write_file(const std::string& flag, const std::string& path, const std::string& text) {
  const int reason = write_all(path, text);
  if (reason == 0) return;
  if (std::error_code none; std::filesystem::is_regular_file(path, none)) unlink(path.c_str());
  throw Error(refusal(flag, path, reason));
}

void give_report(const std::string& destination, const std::function<void()>& print,
                 const std::function<std::string()>& json) {
  if (destination != "-") print();
  if (destination.empty()) return;
  const std::string text = json() + "\n";
  if (destination != "-") return write_file("--json", destination, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace mladcp
