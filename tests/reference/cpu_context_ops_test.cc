// Gather, exchange and reorganise of a cached context on the host: data that only moves, so every
// comparison is exact.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/chunk_plan.h"
#include "core/error.h"
#include "reference/cpu_cache_ops.h"
#include "reference/cpu_query_ops.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

using ::testing::HasSubstr;

// Index arrays of one chunk, kept alive beside their views.
struct Chunk {
  Tensor cu_seq_lens, token_to_seq, seq_starts, source_rows;
  ContextChunkTensors tensors;
};

Chunk chunk_of(const std::vector<std::int32_t>& cu_seq_lens,
               const std::vector<std::int32_t>& token_to_seq,
               const std::vector<std::int32_t>& seq_starts,
               const std::vector<std::int32_t>& source_rows = {}) {
  Chunk chunk{index_tensor(cu_seq_lens, "cu_seq_lens"),
              index_tensor(token_to_seq, "token_to_seq"),
              index_tensor(seq_starts, "seq_starts"),
              index_tensor(source_rows, "source_rows"),
              {}};
  chunk.tensors = {chunk.cu_seq_lens, chunk.token_to_seq, chunk.seq_starts, chunk.source_rows};
  return chunk;
}

Chunk chunk_of(const ContextChunk& chunk) {
  return chunk_of(chunk.padded_local_cu_seq_lens, chunk.padded_local_token_to_seq, chunk.seq_starts,
                  chunk.source_rows);
}

Chunk chunk_of_lengths(const std::vector<std::int32_t>& starts,
                       const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> cu = {0};
  std::vector<std::int32_t> token_to_seq;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    cu.push_back(cu.back() + lengths[s]);
    token_to_seq.insert(token_to_seq.end(), static_cast<std::size_t>(lengths[s]),
                        static_cast<std::int32_t>(s));
  }
  return chunk_of(cu, token_to_seq, starts);
}

Tensor table_tensor(const std::vector<std::int32_t>& pages, std::int64_t requests) {
  Tensor table = host_tensor(
      DType::kI32, {requests, static_cast<std::int64_t>(pages.size()) / requests}, "block_table");
  std::copy(pages.begin(), pages.end(), table.as<std::int32_t>());
  return table;
}

std::vector<std::int32_t> shuffled_pages(std::int64_t count, Numbers& numbers) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), numbers.engine());
  return pages;
}

struct GatherCase {
  const char* what;
  std::int64_t page_size;
  std::int64_t columns;
  std::int64_t pages;  // of the cache; the table names some
  std::vector<std::int32_t> starts;
  std::vector<std::int32_t> lengths;
  std::int64_t width;
  std::int64_t first_column;  // of the wider row the cache is a view of
};

// The grid of the upstream kernel test and its siblings. Every code of the cache is random, NaN
// codes included; pages are shuffled, so that neighbours in the table are not neighbours in memory.
const std::vector<GatherCase> kGathers = {
    {"upstream", 16, 4, 128, {3, 17, 5}, {20, 10, 16}, 576, 0},
    {"empty, single, unaligned", 16, 6, 128, {3, 17, 5, 31}, {0, 1, 63, 4}, 576, 0},
    {"long, empty first", 64, 512, 2048, {0, 0, 0, 0}, {0, 17, 32680, 71}, 40, 0},
    {"rows inside wider rows", 16, 4, 128, {3, 17, 5}, {20, 10, 16}, 576, 1},
    {"to the last column", 64, 2, 6, {0, 64, 127}, {128, 64, 1}, 13, 0},
    {"nothing at all", 64, 2, 4, {0, 64}, {0, 0}, 13, 0},
};

// Gathers with the operation and, scalar by scalar from the law, into `expected`.
void gather_both_ways(const GatherCase& c, DType dtype, float scale, const TensorView& out,
                      const TensorView& expected) {
  Numbers numbers(3);
  const auto requests = static_cast<std::int64_t>(c.starts.size());
  const Tensor wide = host_tensor(dtype, {c.pages, c.page_size, c.width + c.first_column}, "cache");
  for (std::int64_t i = 0; i < wide.view().bytes(); ++i) {
    wide.as<unsigned char>()[i] = static_cast<unsigned char>(numbers.integer(0, 255));
  }
  const KvCache cache{wide.view().narrow(2, c.first_column, c.width), scale};
  std::vector<std::int32_t> table = shuffled_pages(c.pages, numbers);
  table.resize(static_cast<std::size_t>(requests * c.columns));
  const Tensor table_view = table_tensor(table, requests);
  const Chunk chunk = chunk_of_lengths(c.starts, c.lengths);
  CpuCacheOps(2).gather_and_dequantize(out, cache, table_view, chunk.tensors, kHostStream);

  std::int64_t t = 0;
  for (std::size_t s = 0; s < c.starts.size(); ++s) {
    for (std::int64_t row = c.starts[s]; row < c.starts[s] + c.lengths[s]; ++row, ++t) {
      const std::int64_t page = table[s * static_cast<std::size_t>(c.columns) +
                                      static_cast<std::size_t>(row / c.page_size)];
      const std::int64_t at = (page * c.page_size + row % c.page_size) * wide.shape()[2];
      for (std::int64_t d = 0; d < c.width; ++d) {
        const std::int64_t from = at + c.first_column + d;
        BFloat16& to = expected.as<BFloat16>()[t * c.width + d];
        to = dtype == DType::kBF16
                 ? wide.as<BFloat16>()[from]
                 : BFloat16::from_float(wide.as<Float8E4M3>()[from].to_float() * scale);
      }
    }
  }
}

TEST(GatherAndDequantize, EqualsTheLawElementForElement) {
  for (const GatherCase& c : kGathers) {
    for (const DType dtype : {DType::kE4M3, DType::kBF16}) {
      for (const float scale : {0.1F, 1.0F, 3.0F}) {
        SCOPED_TRACE(testing::Message() << c.what << " " << name(dtype) << " scale " << scale);
        const std::int64_t toks = std::accumulate(c.lengths.begin(), c.lengths.end(), 0);
        // The destination is a part of a larger workspace: what lies round it stays.
        const Tensor workspace = host_tensor(DType::kBF16, {toks + 7, c.width}, "workspace");
        poison(workspace);
        const Tensor expected = host_tensor(DType::kBF16, {toks, c.width}, "expected");
        const TensorView out = workspace.view().narrow(0, 3, toks);
        gather_both_ways(c, dtype, scale, out, expected);
        EXPECT_TRUE(bytes_of(out) == bytes_of(expected));
        for (const std::int64_t row : {std::int64_t{2}, toks + 3}) {
          const auto canary = bytes_of(workspace.view().narrow(0, row, 1));
          EXPECT_EQ(canary, std::vector<unsigned char>(canary.size(), 0xFF)) << "row " << row;
        }
      }
    }
  }
}

// Bytes 0x38 are 1: a raw copy would read 1 (or 56), a scale applied twice 0.01.
TEST(GatherAndDequantize, ScalesOnceOnBothRanks) {
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const Tensor data = host_tensor(DType::kE4M3, {2, 4, 9}, "cache");
    std::fill_n(data.as<unsigned char>(), data.view().bytes(), 0x38);
    const ChunkPlan plan = build_chunk_plan(std::vector<std::int64_t>{7}, {{2, 1}, 4, 16});
    const Chunk chunk = chunk_of(plan.chunks[0]);
    const Tensor out = host_tensor(DType::kBF16, {plan.chunks[0].toks, 9}, "out");
    CpuCacheOps(1).gather_and_dequantize(out, {data, 0.1F}, table_tensor({1}, 1), chunk.tensors,
                                         kHostStream);
    EXPECT_EQ(values_of(out),
              std::vector<float>(values_of(out).size(), BFloat16::from_float(0.1F).to_float()));
  }
}

struct Refusal {
  const char* what;
  std::vector<std::int32_t> table;  // of 64-token pages, one row a request
  std::vector<std::int32_t> cu_seq_lens;
  std::vector<std::int32_t> token_to_seq;
  std::vector<std::int32_t> seq_starts;
  const char* message;
};

std::vector<std::int32_t> rows_of(std::size_t count, std::int32_t request) {
  return std::vector<std::int32_t>(count, request);
}

TEST(GatherAndDequantizeRefuses, BeforeReadingAndByName) {
  const std::vector<Refusal> refusals = {
      {"rows past the table",
       {1, 2},
       {0, 65},
       rows_of(65, 0),
       {128},
       "of request 0 reach column 3"},
      {"one row past it", {1, 2}, {0, 65}, rows_of(65, 0), {64}, "of request 0 reach column 2"},
      {"no such page",
       {1, 4},
       {0, 65},
       rows_of(65, 0),
       {0},
       "block_table[request 0][column 1] = 4"},
      {"negative page", {1, -1}, {0, 65}, rows_of(65, 0), {0}, "block_table[request 0][column 1]"},
      {"request too large", {1, 2}, {0, 3}, {0, 0, 1}, {0}, "token_to_seq[2] = 1"},
      {"negative request", {1, 2}, {0, 3}, {0, -1, 0}, {0}, "token_to_seq[1] = -1"},
      {"a row of another request", {1, 2}, {0, 1, 3}, {0, 0, 1}, {0, 0}, "token_to_seq[1] = 0"},
      {"negative length", {1, 2}, {0, 4, 2}, {0, 0}, {0, 0}, "length of request 1 = -2"},
      {"negative start", {1, 2}, {0, 2}, {0, 0}, {-1}, "seq_starts of request 0 = -1"},
      {"late first row", {1, 2}, {1, 2}, {0, 0}, {0}, "cu_seq_lens[0] = 1"},
  };
  const Tensor data = host_tensor(DType::kE4M3, {4, 64, 9}, "cache");
  std::fill_n(data.as<unsigned char>(), data.view().bytes(), 0x38);
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    const Chunk chunk = chunk_of(refusal.cu_seq_lens, refusal.token_to_seq, refusal.seq_starts);
    const Tensor out = host_tensor(
        DType::kBF16, {static_cast<std::int64_t>(refusal.token_to_seq.size()), 9}, "out");
    poison(out);
    const auto before = bytes_of(out);
    try {
      CpuCacheOps(1).gather_and_dequantize(
          out, {data, 1.0F},
          table_tensor(refusal.table, static_cast<std::int64_t>(refusal.seq_starts.size())),
          chunk.tensors, kHostStream);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(refusal.message));
    }
    EXPECT_EQ(bytes_of(out), before);
  }
}

// Lengths 4, 0, 3: an empty request hides neither the rows behind it nor a wild table of its own.
TEST(GatherAndDequantize, GoesOnBehindAnEmptyRequest) {
  const Tensor data = filled(DType::kBF16, {3, 4, 2}, "cache", [](auto i) { return i; });
  const Chunk chunk = chunk_of_lengths({0, 900, 1}, {4, 0, 3});
  const Tensor out = host_tensor(DType::kBF16, {7, 2}, "out");
  CpuCacheOps(1).gather_and_dequantize(out, {data, 1.0F}, table_tensor({2, 2147480000, 0}, 3),
                                       chunk.tensors, kHostStream);
  EXPECT_EQ(values_of(out), (std::vector<float>{16, 17, 18, 19, 20, 21, 22, 23,  //
                                                2, 3, 4, 5, 6, 7}));
}

TEST(GatherAndDequantize, RefusesForeignShapesAndTypes) {
  const Tensor data = host_tensor(DType::kE4M3, {4, 64, 9}, "cache");
  const Tensor table = table_tensor({1, 2}, 1);
  const Chunk chunk = chunk_of_lengths({0}, {5});
  const auto gather = [&](const TensorView& out, const TensorView& cache, const TensorView& pages) {
    CpuCacheOps(1).gather_and_dequantize(out, {cache, 1.0F}, pages, chunk.tensors, kHostStream);
  };
  const Tensor out = host_tensor(DType::kBF16, {5, 9}, "out");
  EXPECT_NO_THROW(gather(out, data, table));
  EXPECT_THROW(gather(host_tensor(DType::kBF16, {4, 9}, "out"), data, table), InvalidArgument);
  EXPECT_THROW(gather(host_tensor(DType::kF32, {5, 9}, "out"), data, table), InvalidArgument);
  EXPECT_THROW(gather(out, host_tensor(DType::kF32, {4, 64, 9}, "cache"), table), InvalidArgument);
  EXPECT_THROW(gather(out, data, table_tensor({1, 2}, 2)), InvalidArgument);
  EXPECT_THROW(gather(out, data, host_tensor(DType::kI64, {1, 2}, "block_table")), InvalidArgument);
}

TEST(Reorganise, MovesBitsByTheSourceRows) {
  const Tensor gathered = host_tensor(DType::kBF16, {5, 3}, "gathered");
  for (int i = 0; i < 15; ++i) {
    gathered.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x7FC0 + i);  // NaN payloads
  }
  const Tensor out = host_tensor(DType::kBF16, {3, 3}, "out");
  CpuCacheOps(1).reorganise(out, gathered, index_tensor<std::int32_t>({4, 0, 2}, "source_rows"),
                            kHostStream);
  const auto bits = [&](int i) { return static_cast<int>(out.as<std::uint16_t>()[i]); };
  for (int d = 0; d < 3; ++d) {
    EXPECT_EQ(bits(d), 0x7FC0 + 12 + d);
    EXPECT_EQ(bits(3 + d), 0x7FC0 + d);
    EXPECT_EQ(bits(6 + d), 0x7FC0 + 6 + d);
  }
  for (const std::int32_t wrong : {-1, 5}) {
    EXPECT_THROW(
        CpuCacheOps(1).reorganise(
            out, gathered, index_tensor<std::int32_t>({4, wrong, 2}, "source_rows"), kHostStream),
        InvalidArgument);
  }
}

// Tag probe: rows carry (rank, request, position) as base-16 digits, exact in e4m3, and every slot
// without such a token is NaN. What comes out of gather, exchange and reorganise names itself.
constexpr std::int64_t kTagWidth = 8;  // 1 digit of the rank, 2 of the request, 5 of the position

std::vector<float> tag_of(std::int64_t rank, std::int64_t request, std::int64_t position) {
  std::vector<float> tag = {static_cast<float>(rank), static_cast<float>(request >> 4),
                            static_cast<float>(request & 15)};
  for (int digit = 4; digit >= 0; --digit) {
    tag.push_back(static_cast<float>(position >> (4 * digit) & 15));
  }
  return tag;
}

struct TagCase {
  std::vector<std::int64_t> contexts;
  ChunkGeometry geometry;
};

class TaggedCaches {
 public:
  explicit TaggedCaches(const TagCase& c) : case_(c) {
    Numbers numbers(9);
    const std::int64_t longest = *std::max_element(c.contexts.begin(), c.contexts.end());
    columns_ = table_columns(c.geometry.sharding, longest, c.geometry.page_size);
    pages_ = columns_ * static_cast<std::int64_t>(c.contexts.size());
    table_ = shuffled_pages(pages_, numbers);
  }

  // Dealt out position by position, not by the sharding laws.
  Tensor rank_cache(std::int64_t rank) const {
    Tensor cache =
        host_tensor(DType::kE4M3, {pages_, case_.geometry.page_size, kTagWidth}, "cache");
    poison(cache);
    const auto& [n, interleave] = case_.geometry.sharding;
    for (std::size_t b = 0; b < case_.contexts.size(); ++b) {
      std::int64_t local = 0;
      for (std::int64_t p = 0; p < case_.contexts[b]; ++p) {
        if (p / interleave % n != rank) continue;
        const std::size_t column = static_cast<std::size_t>(local / case_.geometry.page_size);
        const std::int64_t page = table_[b * static_cast<std::size_t>(columns_) + column];
        const std::int64_t row = page * case_.geometry.page_size + local % case_.geometry.page_size;
        const std::vector<float> tag = tag_of(rank, static_cast<std::int64_t>(b), p);
        for (std::int64_t d = 0; d < kTagWidth; ++d) {
          cache.as<Float8E4M3>()[row * kTagWidth + d] =
              Float8E4M3::from_float(tag[static_cast<std::size_t>(d)]);
        }
        ++local;
      }
    }
    return cache;
  }

  Tensor table() const {
    return table_tensor(table_, static_cast<std::int64_t>(case_.contexts.size()));
  }

 private:
  const TagCase& case_;
  std::int64_t columns_ = 0;
  std::int64_t pages_ = 0;
  std::vector<std::int32_t> table_;
};

TEST(ContextChunks, EveryReorganisedRowIsTheTokenThePlanNames) {
  const std::vector<TagCase> cases = {
      {{65, 96}, {{4, 1}, 64, 128}},           {{9, 5}, {{2, 1}, 2, 4}},
      {{1000, 0, 3, 257}, {{4, 64}, 64, 320}}, {{50, 1, 49, 130}, {{3, 4}, 16, 96}},
      {{777, 20}, {{1, 16}, 16, 48}},          {{513, 2, 64, 65}, {{8, 2}, 16, 64}},
  };
  for (const TagCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.contexts));
    const ChunkPlan plan = build_chunk_plan(c.contexts, c.geometry);
    const std::int64_t n = c.geometry.sharding.world_size;
    const TaggedCaches caches(c);
    std::vector<Tensor> shards;
    for (std::int64_t r = 0; r < n; ++r) shards.push_back(caches.rank_cache(r));
    const Tensor table = caches.table();
    CpuCacheOps ops(1);
    std::int64_t tokens = 0;
    for (const ContextChunk& chunk : plan.chunks) {
      const Chunk tensors = chunk_of(chunk);
      const Tensor gathered = host_tensor(DType::kBF16, {n * chunk.toks, kTagWidth}, "gathered");
      for (std::int64_t r = 0; r < n; ++r) {
        ops.gather_and_dequantize(gathered.view().narrow(0, r * chunk.toks, chunk.toks),
                                  {shards[static_cast<std::size_t>(r)], 1.0F}, table,
                                  tensors.tensors, kHostStream);
      }
      const auto rows = static_cast<std::int64_t>(chunk.source_rows.size());
      const Tensor out = host_tensor(DType::kBF16, {rows, kTagWidth}, "rows");
      ops.reorganise(out, gathered, tensors.source_rows, kHostStream);
      for (std::int64_t i = 0; i < rows; ++i) {
        const GatheredRow row =
            gathered_row(plan, chunk, chunk.source_rows[static_cast<std::size_t>(i)]);
        ASSERT_EQ(values_of(out.view().select(0, i)), tag_of(row.rank, row.request, row.position))
            << describe(row);
      }
      tokens += rows;
    }
    EXPECT_EQ(tokens, std::accumulate(c.contexts.begin(), c.contexts.end(), std::int64_t{0}));
  }
}

// Dequantised before or after transport: the same bits, so FP8 rows could travel as bytes.
TEST(ContextChunks, DequantisingCommutesWithTheExchange) {
  Numbers numbers(45);
  const std::vector<std::int64_t> contexts = {37, 21};
  const ChunkPlan plan = build_chunk_plan(contexts, {{2, 2}, 4, 64});
  ASSERT_EQ(plan.chunks.size(), 1U);
  const Chunk chunk = chunk_of(plan.chunks[0]);
  const std::int64_t toks = plan.chunks[0].toks;
  const Tensor table = table_tensor({4, 1, 0, 2, 3, 5, 9, 7, 8, 6}, 2);
  const Tensor before = host_tensor(DType::kBF16, {2 * toks, 11}, "dequantised, then gathered");
  const Tensor codes = host_tensor(DType::kBF16, {2 * toks, 11}, "gathered codes");
  for (std::int64_t r = 0; r < 2; ++r) {
    const Tensor cache = random_tensor(DType::kE4M3, {10, 4, 11}, "cache", numbers, 3.0F, 60.0F);
    const auto part = [&](const Tensor& whole) { return whole.view().narrow(0, r * toks, toks); };
    CpuCacheOps ops(1);
    ops.gather_and_dequantize(part(before), {cache, 0.1F}, table, chunk.tensors, kHostStream);
    ops.gather_and_dequantize(part(codes), {cache, 1.0F}, table, chunk.tensors, kHostStream);
  }
  const std::vector<float> dequantised = values_of(before);
  const std::vector<float> code_values = values_of(codes);  // a code is exact in bf16
  for (std::size_t i = 0; i < dequantised.size(); ++i) {
    ASSERT_EQ(dequantised[i], BFloat16::from_float(code_values[i] * 0.1F).to_float()) << i;
  }
}

}  // namespace
}  // namespace mladcp
