#include "harness/poisoning_device.h"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr unsigned char kPoison = 0xFF;  // NaN as e4m3, bf16, fp32 and fp64; -1 as an integer

using Guard = std::array<unsigned char, PoisoningDevice::kGuardBytes>;

// NaN in every float format as well, so that reading past an end shows; yet not the poison, so that
// a copy of poison past an end shows, too.
Guard untouched_guard() {
  Guard guard{};
  for (std::size_t i = 0; i < guard.size(); ++i) guard[i] = i % 2 == 0 ? 0xFF : 0x7F;
  return guard;
}

// Guards start and end at multiples of the alignment; the block's slack belongs to the second one.
std::size_t total_bytes(std::size_t bytes) { return bytes + 2 * PoisoningDevice::kGuardBytes; }

}  // namespace

void* BlankDevice::allocate(std::size_t bytes) {
  void* block = next().allocate(bytes);
  if (bytes == 0) return block;
  try {
    next().fill_bytes(block, kPoison, bytes, stream_);
    next().synchronize(stream_);  // other streams use the block next
  } catch (...) {
    next().deallocate(block);
    throw;
  }
  return block;
}

PoisoningDevice::PoisoningDevice(Device& next)
    : BlankDevice(next), description_("poisoning " + std::string(next.description())) {}

void* PoisoningDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  static const Guard kGuard = untouched_guard();
  const std::lock_guard lock(mutex_);
  auto* start = static_cast<unsigned char*>(BlankDevice::allocate(total_bytes(bytes)));
  unsigned char* block = start + kGuardBytes;
  try {
    next().copy_from_host(start, kGuard.data(), kGuardBytes, stream());
    next().copy_from_host(block + bytes, kGuard.data(), kGuardBytes, stream());
    next().synchronize(stream());
    blocks_[block] = bytes;
  } catch (...) {
    next().deallocate(start);
    throw;
  }
  return block;
}

void PoisoningDevice::deallocate(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  auto* block = static_cast<unsigned char*>(pointer);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;  // not ours: freeing it would be worse than keeping it
  try {
    inspect(block, found->second, broken_);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  blocks_.erase(found);
  next().deallocate(block - kGuardBytes);
}

std::vector<PoisoningDevice::BrokenGuard> PoisoningDevice::broken_guards() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error("guards on " + description_ + " not read: " + failure_);
  std::vector<BrokenGuard> broken = broken_;
  for (const auto& [block, bytes] : blocks_) inspect(block, bytes, broken);
  return broken;
}

void PoisoningDevice::inspect(const unsigned char* block, std::size_t bytes,
                              std::vector<BrokenGuard>& broken) {
  const Guard wanted = untouched_guard();
  Guard before{};
  Guard after{};
  next().copy_to_host(before.data(), block - kGuardBytes, kGuardBytes, stream());
  next().copy_to_host(after.data(), block + bytes, kGuardBytes, stream());
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (after[i] == wanted[i]) continue;
    broken.push_back({bytes, static_cast<std::ptrdiff_t>(bytes + i), after[i]});
    break;
  }
  for (std::size_t i = kGuardBytes; i-- > 0;) {
    if (before[i] == wanted[i]) continue;
    broken.push_back(
        {bytes, static_cast<std::ptrdiff_t>(i) - std::ptrdiff_t{kGuardBytes}, before[i]});
    break;
  }
}

std::string describe(const PoisoningDevice::BrokenGuard& broken) {
  const auto end = static_cast<std::ptrdiff_t>(broken.bytes);
  const std::string where = broken.offset < 0
                                ? fmt::format("{} before its start", -broken.offset)
                                : fmt::format("{} past its end", broken.offset - end + 1);
  return fmt::format("a tensor of {} bytes: byte {} ({}) was written: 0x{:02X}", broken.bytes,
                     broken.offset, where, broken.written);
}

}  // namespace mladcp
