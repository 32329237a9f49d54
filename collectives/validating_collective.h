// Compares the ranks' calls before each of them, for backends that do not.
#pragma once

#include <string>
#include <vector>

#include "collectives/fingerprint.h"
#include "collectives/forwarding_collective.h"

namespace mladcp {

// Every call costs one more all-gather, of fingerprints, and a wait for the stream: not for timing,
// and not to be captured into a graph. A difference is a RankMismatch on every rank, with one
// message, before data moves; from then on every call is refused with it. `inner` and `device`
// outlive the decorator.
class ValidatingCollective final : public ForwardingCollective {
 public:
  // `device` holds the tensors of the calls.
  ValidatingCollective(Collective& inner, Device& device);

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  Device& device_;
  Tensor mine_;  // [1, sizeof(Fingerprint)] bytes
  Tensor all_;   // [N, sizeof(Fingerprint)] bytes
  std::vector<Fingerprint> fingerprints_;
  std::string mismatch_;  // the first one
};

}  // namespace mladcp
