#include "harness/report_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "harness/options.h"
#include "harness/text_values.h"

namespace mladcp {
namespace {

std::string refusal(const std::string& flag, const std::string& path, int reason) {
  return fmt::format("{} {} cannot be written: {}; name another file", flag, path,
                     std::strerror(reason));
}

// Whether the path leads to what is no file, a pipe or a device: writing there takes nothing away.
bool is_stream(const std::string& path) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

// Also of files that are not there yet.
bool same_file(const std::string& a, const std::string& b) {
  if (is_stream(a)) return false;
  std::error_code none;
  if (std::filesystem::equivalent(a, b, none)) return true;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(a)) ==
         std::filesystem::weakly_canonical(std::filesystem::absolute(b));
}

// 7 of /dev/fd/7.
std::optional<int> number_of_descriptor(std::string_view path) {
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    int descriptor = 0;
    if (path.starts_with(folder) && is_number(path.substr(folder.size()), descriptor)) {
      return descriptor;
    }
  }
  return {};
}

// The open descriptor that the path is a name of, as /dev/stdout is of 1; links to it are followed.
std::optional<int> descriptor_of(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::error_code error;
  fs::path at = fs::absolute(path).lexically_normal();
  for (int links = 0; links < kMostLinks; ++links) {
    if (const auto descriptor = number_of_descriptor(at.native())) return descriptor;
    const fs::path next = fs::read_symlink(at, error);
    if (error) return {};
    at = (at.parent_path() / next).lexically_normal();
  }
  return {};
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
  if (const auto descriptor = descriptor_of(path)) {  // what it was opened for, not who may open it
    const int flags = fcntl(*descriptor, F_GETFL);
    if (flags < 0) return errno;
    return (flags & O_ACCMODE) == O_RDONLY ? EBADF : 0;
  }
  // Gone again: another process of the job has asked the same.
  return access(path.c_str(), W_OK) == 0 || errno == ENOENT ? 0 : errno;
}

// A descriptor's file opened by its path would be cut off, and written over from its beginning.
std::FILE* open_for_writing(const std::string& path) {
  const auto descriptor = descriptor_of(path);
  if (!descriptor) return std::fopen(path.c_str(), "wbe");
  const int own = fcntl(*descriptor, F_DUPFD_CLOEXEC, 0);
  return own < 0 ? nullptr : fdopen(own, "wb");
}

// 0, or why not.
int write_all(const std::string& path, const std::string& text) {
  std::FILE* file = open_for_writing(path);
  if (file == nullptr) return errno;
  int reason = 0;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) reason = errno;
  if (std::fclose(file) != 0 && reason == 0) reason = errno;
  return reason;
}

// Whether a new file may take the path's place: not that of a stream, of a descriptor's file, or of
// a link that leads nowhere yet.
bool is_replaceable(const std::string& path) {
  if (is_stream(path) || descriptor_of(path)) return false;
  std::error_code none;
  if (!std::filesystem::exists(path, none) && std::filesystem::is_symlink(path, none)) return false;
  const std::string absolute = std::filesystem::absolute(path).lexically_normal();
  return !absolute.starts_with("/dev/") && !absolute.starts_with("/proc/");
}

// 0, or why not.
int replace(const std::string& path, const std::string& text) {
  std::error_code error;
  const std::string target = std::filesystem::weakly_canonical(path, error);
  if (error) return error.value();
  const std::string fresh = fmt::format("{}.{}.part", target, getpid());
  int reason = write_all(fresh, text);
  // A folder that takes no new file may hold one that can be written.
  if (reason == EACCES || reason == EPERM) return write_all(target, text);
  if (reason == 0) {
    if (const auto old = std::filesystem::status(target, error); std::filesystem::exists(old)) {
      std::filesystem::permissions(fresh, old.permissions(), error);
    }
    if (std::rename(fresh.c_str(), target.c_str()) != 0) reason = errno;
  }
  if (reason != 0) unlink(fresh.c_str());
  return reason;
}

}  // namespace

void add_json_option(CLI::App& command, std::string& destination) {
  add_value(command, "--json", destination, "write the report as JSON to FILE, or - for stdout");
}

void expect_writable(const std::string& flag, const std::string& path,
                     const std::vector<std::string>& others) {
  if (path.empty() || path == "-") return;
  for (const std::string& other : others) {
    if (other.empty() || other == "-" || !same_file(path, other)) continue;
    throw InvalidArgument(
        fmt::format("{} is {}, a file that the command names elsewhere too: name another file",
                    flag, in_quotes(path)));
  }
  const int reason = why_unwritable(path);
  if (reason != 0) throw InvalidArgument(refusal(flag, path, reason));
}

void write_file(const std::string& flag, const std::string& path, const std::string& text) {
  std::fflush(stdout);  // what was printed comes first, should both go to one place
  const int reason = is_replaceable(path) ? replace(path, text) : write_all(path, text);
  if (reason != 0) throw Error(refusal(flag, path, reason));
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
