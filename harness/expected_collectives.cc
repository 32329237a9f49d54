#include "harness/expected_collectives.h"

namespace mladcp {

std::vector<CollectiveCall> expected_decode_collectives(const ParallelConfig& config,
                                                        const MlaDims& dims, std::int64_t rows) {
  std::vector<CollectiveCall> calls;
  const std::int64_t n = config.dcp;
  if (n == 1) return calls;
  const std::int64_t h = config.local_heads();
  const std::int64_t hg = config.gathered_heads();
  const std::int64_t x = config.project_before_merge ? dims.value : dims.latent;
  const auto add = [&](CollectiveOp op, int dim, DType dtype, const Shape& in, const Shape& out,
                       const char* stage) {
    calls.push_back({op, dim, dtype, in, out, stage, static_cast<std::int64_t>(calls.size())});
  };

  if (!config.replicate_query) {
    const DType dtype = config.quantized_query() ? DType::kE4M3 : DType::kBF16;
    add(CollectiveOp::kAllGather, 1, dtype, {rows, h, dims.row()}, {rows, hg, dims.row()}, "query");
  }
  const Shape blocks = {n, rows, h, x};
  const Shape packed = {n, rows, h, x + 2};
  switch (config.combine) {
    case Combine::kAllGatherReduceScatter:
      add(CollectiveOp::kAllGather, 0, DType::kF32, {rows, hg}, {n * rows, hg}, "lse");
      add(CollectiveOp::kReduceScatter, 1, config.reduce_dtype, {rows, hg, x}, {rows, h, x},
          "output");
      break;
    case Combine::kAllToAll:
      add(CollectiveOp::kAllToAll, 0, DType::kBF16, blocks, blocks, "output");
      add(CollectiveOp::kAllToAll, 0, DType::kF32, {n, rows, h}, {n, rows, h}, "lse");
      break;
    case Combine::kAllToAllPacked:
      add(CollectiveOp::kAllToAll, 0, DType::kBF16, packed, packed, "output");
      break;
  }
  return calls;
}

std::vector<CollectiveCall> expected_prefill_collectives(const ParallelConfig& config,
                                                         const MlaDims& dims,
                                                         const ChunkPlan& plan) {
  std::vector<CollectiveCall> calls;
  if (config.dcp == 1) return calls;
  const std::int64_t period = config.dcp * config.interleave;
  for (const ContextChunk& chunk : plan.chunks) {
    std::int64_t runs = 0;
    for (const ContextPiece& piece : chunk.pieces) runs += (piece.length + period - 1) / period;
    const std::int64_t toks = runs * config.interleave;
    calls.push_back({CollectiveOp::kAllGather,
                     0,
                     DType::kBF16,
                     {toks, dims.row()},
                     {config.dcp * toks, dims.row()},
                     "context",
                     static_cast<std::int64_t>(calls.size())});
  }
  return calls;
}

}  // namespace mladcp
