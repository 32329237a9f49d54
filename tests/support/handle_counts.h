// A host device that numbers the streams and events it gives out.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/forwarding_device.h"

namespace mladcp {

class HandleCounts : public ForwardingDevice {
 public:
  // Of streams and events together the one after the first `most` cannot be made.
  explicit HandleCounts(int most = 1000) : ForwardingDevice(host_device()), most_(most) {}

  int made() const { return made_; }
  int alive() const { return alive_; }

  Stream create_stream() override { return {next_handle()}; }
  void destroy_stream(Stream) noexcept override { --alive_; }
  Event create_event() override { return {next_handle()}; }
  void destroy_event(Event) noexcept override { --alive_; }

 private:
  void* next_handle() {
    if (made_ == most_) throw Error("no more handles");
    ++alive_;
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(++made_));
  }

  int most_;
  int made_ = 0;
  int alive_ = 0;
};

}  // namespace mladcp
