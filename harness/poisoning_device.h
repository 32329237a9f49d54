// Device decorators whose memory tells on those who misuse it: every block starts out as NaN (bytes
// 0xFF); of the poisoning one it lies between two guards, too, that nobody may write.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/forwarding_device.h"

namespace mladcp {

// What nobody has written is never right by chance, and the same in every run. Blocks are filled on
// a stream of the decorator's own. Thread safe where the next device is.
class BlankDevice : public ForwardingDevice {
 public:
  explicit BlankDevice(Device& next) : ForwardingDevice(next), stream_(next.create_stream()) {}
  ~BlankDevice() override { next().destroy_stream(stream_); }
  BlankDevice(const BlankDevice&) = delete;
  BlankDevice& operator=(const BlankDevice&) = delete;

  void* allocate(std::size_t bytes) override;

 protected:
  Stream stream() const { return stream_; }

 private:
  Stream stream_;
};

// Work of any stream may touch the memory; the decorator fills and reads guards on a stream of its
// own, when memory is allocated and after it has been given back, so whoever frees a block must
// have waited for the work on it (as every owner of device memory must). Thread safe. Blocks must
// not outlive it. A write of the guard's own bytes goes unseen.
class PoisoningDevice final : public BlankDevice {
 public:
  static constexpr std::size_t kGuardBytes = 256;  // keeps the next device's alignment

  explicit PoisoningDevice(Device& next);

  // A block whose guard was written: the bytes asked for, and the written byte nearest to the
  // block, counted from its start (negative before it, `bytes` or more after it).
  struct BrokenGuard {
    std::size_t bytes = 0;
    std::ptrdiff_t offset = 0;
    unsigned char written = 0;
  };
  // Of the blocks freed so far and those alive, which are read now; waits for no stream.
  std::vector<BrokenGuard> broken_guards();

  std::string_view description() const override { return description_; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer) noexcept override;

 private:
  void inspect(const unsigned char* block, std::size_t bytes, std::vector<BrokenGuard>& broken);

  std::string description_;
  std::mutex mutex_;
  std::map<unsigned char*, std::size_t> blocks_;  // bytes asked for, by what allocate returned
  std::vector<BrokenGuard> broken_;               // of freed blocks
  std::string failure_;                           // what kept deallocate from reading a guard
};

// "256 bytes: byte 258 (2 past the end) was written: 0x3F"
std::string describe(const PoisoningDevice::BrokenGuard& broken);

}  // namespace mladcp
