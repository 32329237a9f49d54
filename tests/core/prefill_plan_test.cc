#include "core/prefill_plan.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/prefill_workspace.h"

namespace mladcp {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr Stream kHostStream{};

// N 2, I 2, page 4: a table column spans 8 positions.
const ChunkGeometry kGeometry{{2, 2}, 4, 16};
const BlockTable kTable{2, {3, 1, 2, 5}};

std::vector<std::int32_t> ints(const TensorView& view) {
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + view.elements()};
}

TEST(PrefillPlan, NewTokensFollowTheContextIntoTheirOwnersSlots) {
  const std::vector<PrefillRequest> requests = {{5, 4}, {0, 2}};
  const PrefillPlan zero = plan_prefill(kGeometry, {0, 6}, requests, kTable);
  const PrefillPlan one = plan_prefill(kGeometry, {1, 6}, requests, kTable);
  EXPECT_THAT(zero.position, ElementsAre(5, 6, 7, 8, 0, 1));
  EXPECT_THAT(zero.cu_rows, ElementsAre(0, 4, 6));
  EXPECT_EQ(zero.max_rows, 4);
  // Owners of 0..9: 0 0 1 1 0 0 1 1 0 0; local rows 0 1 0 1 2 3 2 3 4 5.
  EXPECT_THAT(zero.slots, ElementsAre(3 * 4 + 3, -1, -1, 1 * 4 + 0, 2 * 4 + 0, 2 * 4 + 1));
  EXPECT_THAT(one.slots, ElementsAre(-1, 3 * 4 + 2, 3 * 4 + 3, -1, -1, -1));
  EXPECT_THAT(zero.context.contexts, ElementsAre(5, 0));
}

TEST(PrefillPlan, EveryNewTokenHasOneSlotOverTheRanks) {
  for (const std::int64_t n : {1, 2, 3, 4}) {
    const ChunkGeometry geometry{{n, 2}, 4, 4 * n};
    const BlockTable table{20, std::vector<std::int32_t>(40, 0)};
    const std::vector<PrefillRequest> requests = {{13, 29}, {0, 17}};
    std::vector<int> stored(46, 0);
    for (std::int64_t r = 0; r < n; ++r) {
      const PrefillPlan plan = plan_prefill(geometry, {r, 1}, requests, table);
      for (std::size_t t = 0; t < 46; ++t) stored[t] += plan.slots[t] >= 0 ? 1 : 0;
    }
    EXPECT_EQ(stored, std::vector<int>(46, 1)) << "N " << n;
  }
}

struct Refusal {
  const char* what;
  std::vector<PrefillRequest> requests;
  CacheShard shard;
  const char* message;
};

TEST(PrefillPlan, RefusalsNameRequestAndColumn) {
  const std::vector<Refusal> refusals = {
      {"rank", {{5, 4}, {0, 2}}, {2, 6}, "rank = 2"},
      {"negative new tokens", {{5, 4}, {0, -2}}, {0, 6}, "new tokens of request 1 = -2"},
      {"negative context", {{5, 4}, {-1, 2}}, {0, 6}, "context length of request 1 = -1"},
      {"too many rows", {{5, 4}, {0, 1LL << 31}}, {0, 6}, "request 1"},
      {"context past the table", {{17, 0}, {0, 2}}, {0, 6}, "request 0 reads column 2"},
      {"new tokens past the table", {{5, 4}, {0, 17}}, {0, 6}, "request 1 reach column 2"},
      {"new tokens' page", {{5, 4}, {3, 6}}, {0, 5}, "block_table[request 1][column 1] = 5"},
      {"context's page", {{5, 4}, {9, 0}}, {0, 5}, "block_table[request 1][column 1] = 5"},
      {"table size", {{5, 4}}, {0, 6}, "block_table entries = 4"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    try {
      plan_prefill(kGeometry, refusal.shard, refusal.requests, kTable);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(refusal.message));
    }
  }
  // The table ends exactly with the last token; entries behind it may be anything.
  EXPECT_NO_THROW(plan_prefill(kGeometry, {0, 6}, std::vector<PrefillRequest>{{5, 11}, {1, 0}},
                               {2, {3, 1, 2, 2'147'480'000}}));
}

ParallelConfig two_ranks() {
  ParallelConfig config;
  config.heads = 6;
  config.tp = config.dcp = 2;
  config.interleave = 2;
  config.page_size = 4;
  return config;
}

TEST(PrefillWorkspace, HoldsThePlanInIndexTensors) {
  PrefillWorkspace workspace(host_device(), two_ranks(), {8, 2, 4, 5}, {10, 16});
  const std::vector<PrefillRequest> requests = {{5, 4}, {9, 2}};
  for (int repeat = 0; repeat < 2; ++repeat) {  // a second load reuses the memory
    const PrefillPlan plan = plan_prefill(kGeometry, {1, 6}, requests, kTable);
    workspace.load(plan, kHostStream);
    EXPECT_EQ(workspace.rows(), 6);
    EXPECT_EQ(workspace.max_rows(), 4);
    EXPECT_THAT(ints(workspace.cu_rows()), ElementsAreArray(plan.cu_rows));
    EXPECT_THAT(ints(workspace.block_table()), ElementsAreArray(kTable.pages));
    EXPECT_EQ(workspace.block_table().shape, (Shape{2, 2}));
    ASSERT_EQ(workspace.chunks(), 2);
    for (std::int64_t c = 0; c < 2; ++c) {
      const ContextChunk& chunk = plan.context.chunks[static_cast<std::size_t>(c)];
      const ContextChunkTensors& tensors = workspace.chunk(c);
      EXPECT_THAT(ints(tensors.cu_seq_lens), ElementsAreArray(chunk.padded_local_cu_seq_lens));
      EXPECT_THAT(ints(tensors.token_to_seq), ElementsAreArray(chunk.padded_local_token_to_seq));
      EXPECT_THAT(ints(tensors.seq_starts), ElementsAreArray(chunk.seq_starts));
      EXPECT_THAT(ints(tensors.source_rows), ElementsAreArray(chunk.source_rows));
      EXPECT_THAT(ints(workspace.cu_context(c)), ElementsAreArray(chunk.cu_seq_lens));
      EXPECT_EQ(workspace.local_rows(c).shape, (Shape{chunk.toks, 10}));
      EXPECT_EQ(workspace.gathered_rows(c).shape, (Shape{2 * chunk.toks, 10}));
      EXPECT_EQ(workspace.context_rows(c).size(0), chunk.cu_seq_lens.back());
    }
  }
}

TEST(PrefillWorkspace, RefusesPlansBeyondItsLimits) {
  const MlaDims dims{8, 2, 4, 5};
  EXPECT_THROW(PrefillWorkspace(host_device(), two_ranks(), dims, {4, 15}), InvalidArgument);
  const std::vector<PrefillRequest> requests = {{16, 4}, {0, 2}};
  const BlockTable table{3, std::vector<std::int32_t>(6, 0)};
  PrefillWorkspace few_rows(host_device(), two_ranks(), dims, {5, 16});
  EXPECT_THROW(few_rows.load(plan_prefill(kGeometry, {0, 6}, requests, table), kHostStream),
               InvalidArgument);
  PrefillWorkspace small_chunks(host_device(), two_ranks(), dims, {6, 8});
  EXPECT_THROW(small_chunks.load(plan_prefill(kGeometry, {0, 6}, requests, table), kHostStream),
               InvalidArgument);
  PrefillWorkspace other_ranks(host_device(), two_ranks(), dims, {6, 16});
  EXPECT_THROW(
      other_ranks.load(plan_prefill({{4, 2}, 4, 16}, {0, 6}, requests, table), kHostStream),
      InvalidArgument);
}

}  // namespace
}  // namespace mladcp
