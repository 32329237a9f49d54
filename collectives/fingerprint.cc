#include "collectives/fingerprint.h"

#include <algorithm>
#include <vector>

#include "collectives/mismatch.h"

namespace mladcp {
namespace {

Shape shape_from(const std::int64_t* extents, std::int32_t rank) {
  Shape shape;
  for (int dim = 0; dim < std::clamp(rank, 0, Extents::kMaxRank); ++dim) {
    shape.push_back(extents[dim]);
  }
  return shape;
}

}  // namespace

Fingerprint Fingerprint::of(const CollectiveCall& call) {
  Fingerprint result;
  result.sequence = call.sequence;
  std::copy(call.in_shape.begin(), call.in_shape.end(), result.in_shape);
  std::copy(call.out_shape.begin(), call.out_shape.end(), result.out_shape);
  result.in_rank = call.in_shape.rank();
  result.out_rank = call.out_shape.rank();
  result.dim = call.dim;
  result.op = static_cast<std::uint8_t>(call.op);
  result.dtype = static_cast<std::uint8_t>(call.dtype);
  const std::string_view stage_name = call.stage.substr(0, kStageBytes);
  result.stage_bytes = static_cast<std::uint8_t>(stage_name.size());
  std::copy(stage_name.begin(), stage_name.end(), result.stage);
  return result;
}

CollectiveCall Fingerprint::call() const {
  const std::size_t length = std::min<std::size_t>(stage_bytes, kStageBytes);
  return {static_cast<CollectiveOp>(op),
          dim,
          static_cast<DType>(dtype),
          shape_from(in_shape, in_rank),
          shape_from(out_shape, out_rank),
          std::string_view(stage, length),
          sequence};
}

std::string mismatch_message(std::span<const Fingerprint> fingerprint_of_rank) {
  std::vector<CollectiveCall> calls;
  for (const Fingerprint& fingerprint : fingerprint_of_rank) calls.push_back(fingerprint.call());
  return mismatch_message(std::span<const CollectiveCall>(calls));
}

}  // namespace mladcp
