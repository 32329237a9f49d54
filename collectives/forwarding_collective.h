// The base of decorators: everything forwards, a decorator overrides run().
#pragma once

#include "core/collective.h"

namespace mladcp {

// `inner` outlives the decorator. The call reaches it with the sequence number of the decorator, so
// that a dropped or doubled call shows as a mismatch of sequence numbers.
class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(Collective& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  void synchronize(Stream stream) override { inner_.synchronize(stream); }

 protected:
  void forward(const CollectiveCall& call, const TensorView& out, const TensorView& in,
               Stream stream) {
    inner_.run(call, out, in, stream);
  }

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    forward(call, out, in, stream);
  }

  Collective& inner_;
};

}  // namespace mladcp
