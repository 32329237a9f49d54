// Keeps a record of every call that passes to another collective.
#pragma once

#include "collectives/call_log.h"
#include "collectives/forwarding_collective.h"

namespace mladcp {

// A call that throws is recorded too, as not completed. `inner` and `log` outlive the decorator.
class RecordingCollective final : public ForwardingCollective {
 public:
  RecordingCollective(Collective& inner, CallLog& log) : ForwardingCollective(inner), log_(log) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  CallLog& log_;
};

}  // namespace mladcp
