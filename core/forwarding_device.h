// The base of device decorators: hands every call on. Derive and override what the decorator does.
#pragma once

#include "core/device.h"

namespace mladcp {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& next) : next_(next) {}

  Device& next() const { return next_; }

  DeviceKind kind() const override { return next_.kind(); }
  std::string_view description() const override { return next_.description(); }
  void* allocate(std::size_t bytes) override { return next_.allocate(bytes); }
  void deallocate(void* pointer) noexcept override { next_.deallocate(pointer); }
  Stream create_stream() override { return next_.create_stream(); }
  void destroy_stream(Stream stream) noexcept override { next_.destroy_stream(stream); }
  void synchronize(Stream stream) override { next_.synchronize(stream); }
  Event create_event() override { return next_.create_event(); }
  void destroy_event(Event event) noexcept override { next_.destroy_event(event); }
  void record(Event event, Stream stream) override { next_.record(event, stream); }
  void wait(Stream stream, Event event) override { next_.wait(stream, event); }
  void copy(void* destination, const void* source, std::size_t bytes, Stream stream) override {
    next_.copy(destination, source, bytes, stream);
  }
  void copy_from_host(void* destination, const void* source, std::size_t bytes,
                      Stream stream) override {
    next_.copy_from_host(destination, source, bytes, stream);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes,
                    Stream stream) override {
    next_.copy_to_host(destination, source, bytes, stream);
  }
  void fill_bytes(void* destination, unsigned char value, std::size_t bytes,
                  Stream stream) override {
    next_.fill_bytes(destination, value, bytes, stream);
  }
  void copy_strided(const TensorView& destination, const TensorView& source,
                    Stream stream) override {
    next_.copy_strided(destination, source, stream);
  }
  void sum_in_rank_order(const TensorView& out, std::span<const TensorView> inputs,
                         Stream stream) override {
    next_.sum_in_rank_order(out, inputs, stream);
  }

 private:
  Device& next_;
};

// Whether the view lies in `device`'s memory, decorated or not on either side.
bool on_device(const TensorView& view, const Device& device);

}  // namespace mladcp
