#include "harness/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 28;

[[noreturn]] void fail(const std::string& path) {
  throw InvalidArgument("'" + path + "' cannot be read: " + std::strerror(errno));
}

class Descriptor {
 public:
  // Non-blocking until open: else a pipe without a writer is waited for.
  explicit Descriptor(const std::string& path)
      : value_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (value_ < 0 || fcntl(value_, F_SETFL, 0) < 0) fail(path);
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor file(path);
  std::string text;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t got = read(file.value(), buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) {
      throw InvalidArgument(
          fmt::format("'{}' is longer than {} bytes: give a shorter file", path, kMostBytes));
    }
    if (got < 0 && errno != EINTR) fail(path);
  }
}

}  // namespace mladcp
