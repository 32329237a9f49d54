// A host device that numbers the streams and events it gives out, from 0.
#pragma once

#include <array>
#include <cstddef>

#include "core/error.h"
#include "core/forwarding_device.h"

namespace mladcp {

class HandleCounts : public ForwardingDevice {
 public:
  // Of streams and events together the one after the first `most` cannot be made.
  explicit HandleCounts(int most = kMost) : ForwardingDevice(host_device()), most_(most) {}

  int made() const { return made_; }
  int alive() const { return alive_; }
  std::ptrdiff_t number(void* handle) const { return static_cast<char*>(handle) - names_.data(); }

  Stream create_stream() override { return {next_handle()}; }
  void destroy_stream(Stream) noexcept override { --alive_; }
  Event create_event() override { return {next_handle()}; }
  void destroy_event(Event) noexcept override { --alive_; }

 private:
  void* next_handle() {
    if (made_ == most_) throw Error("no more handles");
    ++alive_;
    return &names_.at(static_cast<std::size_t>(made_++));
  }

  static constexpr int kMost = 16;
  std::array<char, kMost> names_{};  // a handle is the address of one
  int most_;
  int made_ = 0;
  int alive_ = 0;
};

}  // namespace mladcp
