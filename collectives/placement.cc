#include "collectives/placement.h"

#include <cstddef>

namespace mladcp {

Placement::Placement(int rank, int world_size)
    : rank_(rank), addends_(static_cast<std::size_t>(world_size)) {}

void Placement::apply(const CollectiveCall& call, const TensorView& out,
                      std::span<const TensorView> inputs, Stream stream) {
  const auto world_size = static_cast<int>(inputs.size());
  Device& device = *out.device;
  switch (call.op) {
    case CollectiveOp::kAllGather: {
      const std::int64_t extent = call.in_shape[call.dim];
      for (int s = 0; s < world_size; ++s) {
        device.copy_strided(out.narrow(call.dim, s * extent, extent), inputs[s], stream);
      }
      return;
    }
    case CollectiveOp::kReduceScatter: {
      const std::int64_t extent = call.out_shape[call.dim];
      for (int s = 0; s < world_size; ++s) {
        addends_[s] = inputs[s].narrow(call.dim, rank_ * extent, extent);
      }
      device.sum_in_rank_order(out, addends_, stream);
      return;
    }
    case CollectiveOp::kAllToAll:
      for (int s = 0; s < world_size; ++s) {
        device.copy_strided(out.select(0, s), inputs[s].select(0, rank_), stream);
      }
      return;
  }
}

}  // namespace mladcp
