// The collectives of one decode step of DeepSeek-V3, as every bench of them times them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/collective.h"

namespace mladcp {

struct StepCall {
  const char* label;
  CollectiveCall call;
};

// B requests with one new token each, H heads a rank, N ranks: latent rank 512, RoPE width 64.
inline std::vector<StepCall> decode_step_calls(std::int64_t requests, std::int64_t heads,
                                               std::int64_t world_size) {
  const std::int64_t gathered = heads * world_size;
  const auto gather_query = [&](DType dtype) {
    return CollectiveCall{CollectiveOp::kAllGather,  1,       dtype, {requests, heads, 576},
                          {requests, gathered, 576}, "query", 0};
  };
  const Shape packed = {world_size, requests, heads, 514};
  return {
      {"all_gather_query_e4m3", gather_query(DType::kE4M3)},
      {"all_gather_query_bf16", gather_query(DType::kBF16)},
      {"all_gather_lse",
       {CollectiveOp::kAllGather,
        0,
        DType::kF32,
        {requests, gathered},
        {world_size * requests, gathered},
        "lse",
        0}},
      {"reduce_scatter_output",
       {CollectiveOp::kReduceScatter,
        1,
        DType::kBF16,
        {requests, gathered, 512},
        {requests, heads, 512},
        "output",
        0}},
      {"all_to_all_packed",
       {CollectiveOp::kAllToAll, 0, DType::kBF16, packed, packed, "output", 0}},
  };
}

inline void make_call(Collective& collective, const CollectiveCall& call, const TensorView& out,
                      const TensorView& in, Stream stream) {
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return collective.all_gather(out, in, call.dim, stream, call.stage);
    case CollectiveOp::kReduceScatter:
      return collective.reduce_scatter(out, in, call.dim, stream, call.stage);
    case CollectiveOp::kAllToAll:
      return collective.all_to_all(out, in, stream, call.stage);
  }
}

// Bytes as nccl-tests counts them: the larger side of a rank, of which (N - 1) / N cross the bus.
//   algbw = algorithm_bytes / time      busbw = wire_bytes / time
inline std::int64_t algorithm_bytes(const CollectiveCall& call) {
  const std::int64_t elements =
      std::max(element_count(call.in_shape), element_count(call.out_shape));
  return elements * static_cast<std::int64_t>(size_bytes(call.dtype));
}

}  // namespace mladcp
