// The chunk planner: golden plans, the packing rule, refusals, and 20,000 random plans proved by
// enumeration - where a token lies is counted out here, not asked of the sharding laws.
#include "core/chunk_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ChunkPlan plan_of(const std::vector<std::int64_t>& contexts, std::int64_t workspace_rows,
                  std::int64_t page_size, std::int64_t world_size, std::int64_t interleave) {
  return build_chunk_plan(contexts, {{world_size, interleave}, page_size, workspace_rows});
}

std::vector<std::int32_t> real_of(const ChunkPlan& plan, std::size_t chunk, std::size_t request) {
  std::vector<std::int32_t> lengths;
  for (std::size_t r = 0; r < static_cast<std::size_t>(plan.geometry.sharding.world_size); ++r) {
    lengths.push_back(plan.chunks[chunk].real_lengths[r * plan.contexts.size() + request]);
  }
  return lengths;
}

std::int32_t padded_of(const ContextChunk& chunk, std::size_t request) {
  return chunk.padded_local_cu_seq_lens[request + 1] - chunk.padded_local_cu_seq_lens[request];
}

// Positions each rank keeps of a context, in the order it keeps them: tokens dealt in runs of I.
std::vector<std::vector<std::int64_t>> dealt(std::int64_t context, std::int64_t world_size,
                                             std::int64_t interleave) {
  std::vector<std::vector<std::int64_t>> kept(static_cast<std::size_t>(world_size));
  std::int64_t p = 0;
  while (p < context) {
    for (auto& rank : kept) {
      for (std::int64_t i = 0; i < interleave && p < context; ++i) rank.push_back(p++);
    }
  }
  return kept;
}

// Rows of a chunk's piece on every rank: the runs of I that the piece touches, rounded up.
std::int64_t padded_rows_of(std::int64_t length, const ChunkGeometry& geometry) {
  const std::int64_t period = geometry.sharding.period();
  std::int64_t runs = 0;
  for (std::int64_t p = 0; p < length; p += period) ++runs;
  return runs * geometry.sharding.interleave;
}

// Every token of every context once over all chunks, from its owner's right local row, requests in
// order inside a chunk, ranks in order inside a request, rows in order inside a rank.
void expect_every_token_once(const ChunkPlan& plan) {
  const std::int64_t world_size = plan.geometry.sharding.world_size;
  std::vector<std::vector<std::vector<std::int64_t>>> kept;
  std::vector<std::vector<int>> seen;
  for (const std::int64_t context : plan.contexts) {
    kept.push_back(dealt(context, world_size, plan.geometry.sharding.interleave));
    seen.emplace_back(static_cast<std::size_t>(context), 0);
  }
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    SCOPED_TRACE("chunk " + std::to_string(c));
    const ContextChunk& chunk = plan.chunks[c];
    ASSERT_GT(chunk.toks, 0);
    ASSERT_LE(chunk.toks * world_size, plan.geometry.workspace_rows);
    ASSERT_EQ(chunk.padded_local_cu_seq_lens.back(), chunk.toks);
    ASSERT_EQ(chunk.padded_local_token_to_seq.size(), static_cast<std::size_t>(chunk.toks));
    ASSERT_EQ(chunk.source_rows.size(), static_cast<std::size_t>(chunk.cu_seq_lens.back()));
    for (std::size_t b = 0; b < plan.contexts.size(); ++b) {
      std::int64_t last_rank = 0;
      std::int64_t last_local = -1;
      for (std::int32_t i = chunk.cu_seq_lens[b]; i < chunk.cu_seq_lens[b + 1]; ++i) {
        const std::int64_t row = chunk.source_rows[static_cast<std::size_t>(i)];
        const std::int64_t rank = row / chunk.toks;
        const std::int64_t t = row % chunk.toks;
        ASSERT_LT(rank, world_size);
        ASSERT_EQ(chunk.padded_local_token_to_seq[static_cast<std::size_t>(t)],
                  static_cast<std::int32_t>(b));
        const std::int64_t local = t - chunk.padded_local_cu_seq_lens[b] + chunk.seq_starts[b];
        const auto& rows = kept[b][static_cast<std::size_t>(rank)];
        ASSERT_LT(local, static_cast<std::int64_t>(rows.size())) << "padding was kept";
        const std::int64_t position = rows[static_cast<std::size_t>(local)];
        ++seen[b][static_cast<std::size_t>(position)];
        ASSERT_TRUE(rank > last_rank || (rank == last_rank && local > last_local));
        last_rank = rank;
        last_local = local;
        const GatheredRow named = gathered_row(plan, chunk, row);
        ASSERT_EQ(named.rank, rank);
        ASSERT_EQ(named.request, static_cast<std::int64_t>(b));
        ASSERT_EQ(named.position, position);
        ASSERT_FALSE(named.padding);
      }
    }
  }
  for (std::size_t b = 0; b < seen.size(); ++b) {
    for (std::size_t p = 0; p < seen[b].size(); ++p) {
      ASSERT_EQ(seen[b][p], 1) << "request " << b << " position " << p;
    }
  }
}

// The packing rule leaves one plan: each piece is as long as it may be, given what is before it.
void expect_greedy(const ChunkPlan& plan) {
  const std::int64_t budget = plan.geometry.workspace_rows / plan.geometry.sharding.world_size;
  const std::int64_t cut = std::lcm(plan.geometry.page_size, plan.geometry.sharding.period());
  std::int64_t request = 0;
  std::int64_t start = 0;
  const auto skip_done = [&] {
    while (request < plan.requests() && start == plan.contexts[static_cast<std::size_t>(request)]) {
      ++request;
      start = 0;
    }
  };
  for (const ContextChunk& chunk : plan.chunks) {
    std::int64_t left = budget;
    for (std::size_t i = 0; i <= chunk.pieces.size(); ++i) {
      skip_done();
      std::int64_t wanted = 0;  // 0: nothing more goes into this chunk
      if (request < plan.requests()) {
        const std::int64_t rest = plan.contexts[static_cast<std::size_t>(request)] - start;
        if (padded_rows_of(rest, plan.geometry) <= left) {
          wanted = rest;
        } else {
          while (padded_rows_of(wanted + cut, plan.geometry) <= left) wanted += cut;
        }
      }
      if (i == chunk.pieces.size()) {
        ASSERT_EQ(wanted, 0) << "request " << request << " from " << start << " would have fitted";
        break;
      }
      ASSERT_EQ(chunk.pieces[i], (ContextPiece{request, start, wanted}));
      left -= padded_rows_of(wanted, plan.geometry);
      start += wanted;
    }
  }
  skip_done();
  ASSERT_EQ(request, plan.requests());
}

TEST(ChunkPlan, TwoRequestsThatDoNotFitTogetherTakeTwoChunks) {
  // 65 tokens pad to 17 rows of 32; the rest of 15 holds neither 24 rows nor a cut of 64 / 4 = 16.
  const ChunkPlan plan = plan_of({65, 96}, 128, 64, 4, 1);
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_THAT(plan.chunks[0].pieces, ElementsAre(ContextPiece{0, 0, 65}));
  EXPECT_THAT(plan.chunks[1].pieces, ElementsAre(ContextPiece{1, 0, 96}));
  EXPECT_THAT(real_of(plan, 0, 0), ElementsAre(17, 16, 16, 16));
  EXPECT_THAT(real_of(plan, 0, 1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(real_of(plan, 1, 0), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(real_of(plan, 1, 1), ElementsAre(24, 24, 24, 24));
  EXPECT_EQ(plan.chunks[0].toks, 17);
  EXPECT_EQ(plan.chunks[1].toks, 24);
  EXPECT_THAT(plan.chunks[0].padded_local_cu_seq_lens, ElementsAre(0, 17, 17));
  EXPECT_THAT(plan.chunks[1].padded_local_cu_seq_lens, ElementsAre(0, 0, 24));
  EXPECT_THAT(plan.chunks[0].cu_seq_lens, ElementsAre(0, 65, 65));
  EXPECT_THAT(plan.chunks[1].cu_seq_lens, ElementsAre(0, 0, 96));
}

TEST(ChunkPlan, UnevenTailsOfSeveralChunksKeepEveryTokenOnce) {
  const ChunkPlan alone = plan_of({9}, 4, 2, 2, 1);
  ASSERT_EQ(alone.chunks.size(), 3U);
  const std::vector<std::int32_t> padded = {2, 2, 1};
  const std::vector<std::int32_t> rank_one = {2, 2, 0};
  for (std::size_t c = 0; c < 3; ++c) {
    SCOPED_TRACE(c);
    EXPECT_EQ(padded_of(alone.chunks[c], 0), padded[c]);
    EXPECT_THAT(real_of(alone, c, 0), ElementsAre(padded[c], rank_one[c]));
  }
  EXPECT_THAT(alone.chunks[0].source_rows, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(alone.chunks[2].source_rows, ElementsAre(0));
  expect_every_token_once(alone);
  expect_every_token_once(plan_of({9, 5}, 4, 2, 2, 1));
  expect_every_token_once(plan_of({9, 5}, 8, 2, 2, 1));
}

TEST(ChunkPlan, CutsAreMultiplesOfThePeriodAndNeverZero) {
  const ChunkPlan cut = plan_of({1000}, 320, 64, 4, 64);
  ASSERT_EQ(cut.chunks.size(), 4U);
  EXPECT_THAT(cut.chunks[0].pieces, ElementsAre(ContextPiece{0, 0, 256}));
  EXPECT_THAT(cut.chunks[3].pieces, ElementsAre(ContextPiece{0, 768, 232}));

  const ChunkPlan large = plan_of({100'000, 100'000, 100'000}, 65'536, 64, 8, 64);
  for (const ContextChunk& chunk : large.chunks) {
    for (const ContextPiece& piece : chunk.pieces) {
      EXPECT_GT(piece.length, 0);
      EXPECT_EQ(piece.start % 512, 0);
    }
  }
  expect_greedy(large);
  expect_every_token_once(large);
}

TEST(ChunkPlan, SourceRowsSkipThePaddingOfEveryRank) {
  // N 2, I 2: request 0 of 5 tokens pads to 4 rows (rank 0: 0 1 4, rank 1: 2 3), request 1 of 3
  // tokens to 2 (rank 0: 0 1, rank 1: 2).
  const ChunkPlan plan = plan_of({5, 3}, 16, 2, 2, 2);
  ASSERT_EQ(plan.chunks.size(), 1U);
  const ContextChunk& chunk = plan.chunks[0];
  EXPECT_THAT(chunk.padded_local_token_to_seq, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(chunk.source_rows, ElementsAre(0, 1, 2, 6, 7, 4, 5, 10));
  EXPECT_EQ(describe(gathered_row(plan, chunk, 2)), "rank 0 request 0 position 4 (local row 2)");
  EXPECT_EQ(describe(gathered_row(plan, chunk, 8)), "rank 1 request 0 padding (local row 2)");
  EXPECT_EQ(describe(gathered_row(plan, chunk, 10)), "rank 1 request 1 position 2 (local row 0)");
  EXPECT_THROW(gathered_row(plan, chunk, 12), InvalidArgument);
}

TEST(ChunkPlan, EmptyContextsTakeNoPart) {
  EXPECT_THAT(plan_of({}, 128, 64, 2, 1).chunks, IsEmpty());
  EXPECT_THAT(plan_of({0, 0}, 128, 64, 2, 1).chunks, IsEmpty());
  const ChunkPlan plan = plan_of({0, 7, 0}, 128, 64, 2, 1);
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_THAT(plan.chunks[0].cu_seq_lens, ElementsAre(0, 0, 7, 7));
}

TEST(ChunkPlan, OneRankHasNoPaddingWhateverTheInterleave) {
  const ChunkPlan plan = plan_of({65, 3}, 128, 64, 1, 64);
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].toks, 68);
  for (std::int32_t i = 0; i < 68; ++i) {
    EXPECT_EQ(plan.chunks[0].source_rows[static_cast<std::size_t>(i)], i);
  }
}

TEST(ChunkPlan, TwentyThousandRandomPlans) {
  std::mt19937 random(20'000);
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const std::vector<std::int64_t> ranks = {1, 2, 3, 4, 5, 8};
  const std::vector<std::int64_t> interleaves = {1, 2, 3, 4, 16};
  std::int64_t chunks = 0;
  std::int64_t cut_requests = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    ChunkGeometry geometry;
    geometry.sharding = {ranks[static_cast<std::size_t>(pick(0, 5))],
                         interleaves[static_cast<std::size_t>(pick(0, 4))]};
    geometry.page_size = geometry.sharding.interleave * pick(1, 4);
    const std::int64_t cut = geometry.cut();
    const std::int64_t n = geometry.sharding.world_size;
    geometry.workspace_rows = (cut + pick(0, 2 * cut)) / n * n;
    std::vector<std::int64_t> contexts(static_cast<std::size_t>(pick(0, 5)));
    for (std::int64_t& context : contexts) context = std::max<std::int64_t>(0, pick(-20, 150));
    SCOPED_TRACE(::testing::Message()
                 << "trial " << trial << " N " << n << " I " << geometry.sharding.interleave
                 << " page " << geometry.page_size << " workspace " << geometry.workspace_rows
                 << " contexts " << ::testing::PrintToString(contexts));
    const ChunkPlan plan = build_chunk_plan(contexts, geometry);
    chunks += static_cast<std::int64_t>(plan.chunks.size());
    for (const ContextChunk& chunk : plan.chunks) cut_requests += chunk.pieces.back().start > 0;
    ASSERT_NO_FATAL_FAILURE(expect_every_token_once(plan));
    ASSERT_NO_FATAL_FAILURE(expect_greedy(plan));
  }
  EXPECT_GT(chunks, 20'000);       // the grid does walk several chunks a plan,
  EXPECT_GT(cut_requests, 5'000);  // and does cut requests
}

struct Refusal {
  const char* what;
  std::vector<std::int64_t> contexts;
  ChunkGeometry geometry;
  const char* message;
};

TEST(ChunkPlanRefusals, NameFieldRequestAndRemedy) {
  const std::vector<Refusal> refusals = {
      {"below the period", {9}, {{8, 64}, 64, 8}, "give at least 512"},
      {"below lcm(page, V), above both", {9}, {{3, 2}, 4, 8}, "give at least 12"},
      {"not a multiple of N", {9}, {{4, 1}, 64, 130}, "multiple of world_size = 4"},
      {"beyond int32", {9}, {{4, 1}, 64, 1LL << 32}, "at most 2147483647"},
      {"page cuts a run", {9}, {{2, 16}, 24, 4800}, "multiple of interleave = 16"},
      {"no ranks", {9}, {{0, 1}, 64, 128}, "world_size = 0"},
      {"no interleave", {9}, {{2, 0}, 64, 128}, "interleave = 0"},
      {"no page", {9}, {{2, 1}, 0, 128}, "page_size = 0"},
      {"negative", {4, -3}, {{2, 1}, 64, 128}, "context length of request 1 = -3"},
      {"too long", {0, 1LL << 33}, {{2, 1}, 64, 128}, "request 1"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    try {
      build_chunk_plan(refusal.contexts, refusal.geometry);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(refusal.message));
    }
  }
}

TEST(ChunkPlanBlockTable, ContextsEndExactlyOnTheLastColumn) {
  const ChunkPlan plan = plan_of({128, 0, 65}, 256, 64, 1, 1);
  EXPECT_NO_THROW(check_block_table(plan, {2, {1, 2, -7, 2'147'480'000, 0, 3}}, 4));
}

TEST(ChunkPlanBlockTable, RefusesToReadPastIt) {
  const ChunkPlan plan = plan_of({4, 129}, 256, 64, 1, 1);
  const BlockTable table{2, {1, 2, 3, 4}};
  try {
    check_block_table(plan, table, 8);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("request 1 reads column 2"));
  }
  try {
    check_block_table(plan_of({4, 128}, 256, 64, 1, 1), table, 4);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("block_table[request 1][column 1] = 4"));
  }
  EXPECT_THROW(check_block_table(plan, {3, table.pages}, 8), InvalidArgument);
}

// Padded rows never pass the table: ceil(S / V) * I <= ceil(S / (page * N)) * page.
TEST(ChunkPlanBlockTable, ATableForThePositionsHoldsThePaddingToo) {
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t interleave : {1, 2, 4, 16, 64}) {
      const KvSharding sharding{n, interleave};
      const std::int64_t page = 64;
      for (std::int64_t context = 0; context <= 3 * page * n + 1; ++context) {
        const std::int64_t columns = table_columns(sharding, context, page);
        ASSERT_LE(sharding.padded_rows(context), columns * page)
            << "N " << n << " I " << interleave << " S " << context;
      }
    }
  }
}

// 120 tokens in common, page 16, two ranks: whole columns of 32 positions count as a hit.
TEST(PrefixHit, IsCountedInColumnsOfTheShardedCache) {
  EXPECT_EQ(prefix_hit_length({2, 1}, 120, 16), 96);
  EXPECT_EQ(prefix_hit_length({1, 1}, 120, 16), 112);
  EXPECT_EQ(prefix_hit_length({4, 1}, 120, 16), 64);
}

}  // namespace
}  // namespace mladcp
