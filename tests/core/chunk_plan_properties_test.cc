// Laws of the chunk planner over arbitrary batches (RapidCheck shrinks a broken one).
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/chunk_plan.h"

namespace mladcp {
namespace {

ChunkGeometry any_geometry() {
  ChunkGeometry geometry;
  geometry.sharding = {*rc::gen::inRange<std::int64_t>(1, 9),
                       *rc::gen::inRange<std::int64_t>(1, 9)};
  geometry.page_size = geometry.sharding.interleave * *rc::gen::inRange<std::int64_t>(1, 5);
  const std::int64_t n = geometry.sharding.world_size;
  const std::int64_t extra = *rc::gen::inRange<std::int64_t>(0, 3 * geometry.cut());
  geometry.workspace_rows = (geometry.cut() + extra) / n * n;
  return geometry;
}

std::vector<std::int64_t> any_contexts() {
  return *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 3000));
}

RC_GTEST_PROP(ChunkPlanProperties, RealRowsOfAllChunksAreTheShards, ()) {
  const ChunkPlan plan = build_chunk_plan(any_contexts(), any_geometry());
  const KvSharding& sharding = plan.geometry.sharding;
  for (std::size_t b = 0; b < plan.contexts.size(); ++b) {
    for (std::int64_t r = 0; r < sharding.world_size; ++r) {
      std::int64_t rows = 0;
      for (const ContextChunk& chunk : plan.chunks) {
        rows += chunk.real_lengths[static_cast<std::size_t>(r) * plan.contexts.size() + b];
      }
      RC_ASSERT(rows == sharding.local_length(plan.contexts[b], r));
    }
  }
}

RC_GTEST_PROP(ChunkPlanProperties, PiecesAreTheContextsInOrder, ()) {
  const ChunkPlan plan = build_chunk_plan(any_contexts(), any_geometry());
  std::vector<std::int64_t> done(plan.contexts.size(), 0);
  std::int64_t last = -1;
  for (const ContextChunk& chunk : plan.chunks) {
    for (const ContextPiece& piece : chunk.pieces) {
      std::int64_t& position = done[static_cast<std::size_t>(piece.request)];
      RC_ASSERT(piece.request > last || (piece.request == last && position > 0));
      RC_ASSERT(piece.start == position);
      RC_ASSERT(piece.length > 0);
      position += piece.length;
      last = piece.request;
    }
  }
  RC_ASSERT(done == plan.contexts);
}

RC_GTEST_PROP(ChunkPlanProperties, ChunksFitTheWorkspaceAndCutsTheGrid, ()) {
  const ChunkPlan plan = build_chunk_plan(any_contexts(), any_geometry());
  for (const ContextChunk& chunk : plan.chunks) {
    RC_ASSERT(chunk.toks > 0);
    RC_ASSERT(chunk.toks <= plan.geometry.local_rows());
    for (const ContextPiece& piece : chunk.pieces) {
      RC_ASSERT(piece.start % plan.geometry.cut() == 0);
    }
  }
}

RC_GTEST_PROP(ChunkPlanProperties, NoGatheredRowIsKeptTwiceAndNoPaddingAtAll, ()) {
  const ChunkPlan plan = build_chunk_plan(any_contexts(), any_geometry());
  for (const ContextChunk& chunk : plan.chunks) {
    std::vector<std::int32_t> rows = chunk.source_rows;
    std::sort(rows.begin(), rows.end());
    RC_ASSERT(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
    const std::int64_t gathered = chunk.toks * plan.geometry.sharding.world_size;
    std::size_t kept = 0;
    for (std::int64_t g = 0; g < gathered; ++g) {
      const bool is_kept = kept < rows.size() && rows[kept] == g;
      RC_ASSERT(is_kept != gathered_row(plan, chunk, g).padding);
      kept += is_kept ? 1 : 0;
    }
  }
}

}  // namespace
}  // namespace mladcp
