#include "core/forwarding_device.h"

namespace mladcp {
namespace {

const Device* undecorated(const Device* device) {
  while (const auto* decorator = dynamic_cast<const ForwardingDevice*>(device)) {
    device = &decorator->next();
  }
  return device;
}

}  // namespace

bool on_device(const TensorView& view, const Device& device) {
  return view.device != nullptr && undecorated(view.device) == undecorated(&device);
}

}  // namespace mladcp
