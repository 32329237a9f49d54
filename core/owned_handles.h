// Streams and events of a device that end with their owner.
#pragma once

#include <utility>

#include "core/device.h"

namespace mladcp {

class OwnedStream {
 public:
  explicit OwnedStream(Device& device) : device_(device), stream_(device.create_stream()) {}
  ~OwnedStream() { device_.destroy_stream(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  operator Stream() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  Device& device_;
  Stream stream_;
};

// Moves, so that vectors hold it.
class OwnedEvent {
 public:
  explicit OwnedEvent(Device& device) : device_(&device), event_(device.create_event()) {}
  OwnedEvent(OwnedEvent&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), event_(other.event_) {}
  ~OwnedEvent() {
    if (device_ != nullptr) device_->destroy_event(event_);
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  OwnedEvent& operator=(OwnedEvent&&) = delete;

  operator Event() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  Device* device_;
  Event event_;
};

}  // namespace mladcp
