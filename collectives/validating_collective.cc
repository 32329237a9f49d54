#include "collectives/validating_collective.h"

#include "core/error.h"

namespace mladcp {

ValidatingCollective::ValidatingCollective(Collective& inner, Device& device)
    : ForwardingCollective(inner),
      device_(device),
      mine_(device, DType::kBytes, {1, sizeof(Fingerprint)}, "fingerprint"),
      all_(device, DType::kBytes, {inner.world_size(), sizeof(Fingerprint)}, "fingerprints"),
      fingerprints_(static_cast<std::size_t>(inner.world_size())) {}

void ValidatingCollective::run(const CollectiveCall& call, const TensorView& out,
                               const TensorView& in, Stream stream) {
  if (!mismatch_.empty()) throw RankMismatch("the group is refused since: " + mismatch_);
  const Fingerprint mine = Fingerprint::of(call);
  device_.copy_from_host(mine_.view().data, &mine, sizeof mine, stream);
  // The exchange is one and the same call whatever the ranks are about to do, under the number of
  // the call it stands for.
  const CollectiveCall exchange = {CollectiveOp::kAllGather,
                                   0,
                                   DType::kBytes,
                                   mine_.shape(),
                                   all_.shape(),
                                   "fingerprint",
                                   call.sequence};
  try {
    forward(exchange, all_, mine_, stream);
    synchronize(stream);
  } catch (const Timeout& error) {
    throw Timeout("before " + describe(call) + ": " + error.what());
  }
  device_.copy_to_host(fingerprints_.data(), all_.view().data,
                       fingerprints_.size() * sizeof(Fingerprint), stream);
  mismatch_ = mismatch_message(std::span<const Fingerprint>(fingerprints_));
  if (!mismatch_.empty()) throw RankMismatch(mismatch_);
  forward(call, out, in, stream);
}

}  // namespace mladcp
