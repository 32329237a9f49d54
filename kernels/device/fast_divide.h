// Division by a divisor known at launch, as one multiplication. Granlund and Montgomery, "Division
// by Invariant Integers using Multiplication" (1994), for dividends below 2^31.
#pragma once

#include <cstdint>

#include "core/kv_sharding.h"

namespace mladcp {

class FastDivisor {
 public:
  FastDivisor() = default;
  explicit FastDivisor(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    const std::uint64_t rest = (std::uint64_t{1} << shift_) - divisor;
    multiplier_ = static_cast<std::uint32_t>((rest << 32) / divisor + 1);
  }

  MLADCP_HOST_DEVICE std::uint32_t divisor() const { return divisor_; }
  MLADCP_HOST_DEVICE std::uint32_t quotient(std::uint32_t dividend) const {
    const auto high =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(dividend) * multiplier_) >> 32);
    return (high + dividend) >> shift_;
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t multiplier_ = 1;
  std::uint32_t shift_ = 0;
};

// The same for dividends of any size, by the hardware's division from 2^31 on.
class WideDivisor {
 public:
  WideDivisor() = default;
  // `limit`: above every dividend.
  WideDivisor(std::int64_t divisor, std::int64_t limit)
      : divisor_(divisor),
        narrow_(limit <= std::int64_t{1} << 31 && divisor < std::int64_t{1} << 31),
        fast_(narrow_ ? static_cast<std::uint32_t>(divisor) : 1U) {}

  MLADCP_HOST_DEVICE std::int64_t divisor() const { return divisor_; }
  MLADCP_HOST_DEVICE std::int64_t quotient(std::int64_t dividend) const {
    return narrow_ ? fast_.quotient(static_cast<std::uint32_t>(dividend)) : dividend / divisor_;
  }

 private:
  std::int64_t divisor_ = 1;
  bool narrow_ = false;
  FastDivisor fast_;
};

}  // namespace mladcp
