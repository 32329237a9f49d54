#include "reference/cpu_attention_ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/lse_merge.h"
#include "reference/error_bounds.h"
#include "tests/reference/oracle_problem.h"

namespace mladcp {
namespace {

struct Formats {
  DType query;
  QueryKind kind;
  DType cache;
};

constexpr Formats kFormats[] = {
    {DType::kBF16, QueryKind::kPair, DType::kBF16},
    {DType::kBF16, QueryKind::kTensor, DType::kBF16},
    {DType::kE4M3, QueryKind::kTensor, DType::kE4M3},
    {DType::kBF16, QueryKind::kPair, DType::kE4M3},
    {DType::kBF16, QueryKind::kTensor, DType::kE4M3},
};

AttentionProblemShape shape_of(const Formats& formats) {
  AttentionProblemShape shape;
  shape.query_dtype = formats.query;
  shape.query_kind = formats.kind;
  shape.cache_dtype = formats.cache;
  return shape;
}

ExpectedAttention expect_attention(const AttentionProblem& problem, DType out) {
  CombineRounding rounding;
  rounding.partial = out;
  return expect_decode(oracle_problem(problem), profiles::kCpu, rounding, 1).per_set[0];
}

void expect_within_bounds(const AttentionProblem& problem, const DecodeResult& result) {
  const ExpectedAttention expected = expect_attention(problem, result.out.view().dtype);
  const Comparison of_out = compare(result.out, expected.out);
  const Comparison of_lse = compare(result.lse, expected.lse);
  EXPECT_TRUE(of_out.pass()) << of_out;
  EXPECT_TRUE(of_lse.pass()) << of_lse;
}

// Every pair of formats, however the schedule cuts the requests. The cache around the keys holds
// NaN and the table wild entries, so nothing beyond `visible` can have been touched.
TEST(CpuDecode, LiesWithinItsBoundsForEveryFormatAndCut) {
  for (const Formats& formats : kFormats) {
    for (const std::int64_t parts : {0, 1, 2, 3, 7}) {
      for (const auto& [q_scale, k_scale] : {std::pair{1.0F, 1.0F}, {2.0F, 3.0F}, {0.1F, 0.1F}}) {
        SCOPED_TRACE(testing::Message()
                     << name(formats.query) << " on " << name(formats.cache) << ", " << parts
                     << " parts, scales " << q_scale << " " << k_scale);
        AttentionProblemShape shape = shape_of(formats);
        shape.q_scale = q_scale;
        shape.k_scale = k_scale;
        const AttentionProblem problem = make_attention_problem(shape, parts);
        expect_within_bounds(problem, run_decode(problem));
        expect_within_bounds(problem, run_decode(problem, 2, DType::kF32));
      }
    }
  }
}

TEST(CpuDecode, CutsRequestsWhereTheScheduleDoes) {
  AttentionProblemShape shape;
  shape.visible = {{700}, {64}, {1}};
  const AttentionProblem whole = make_attention_problem(shape, 1);
  const AttentionProblem cut = make_attention_problem(shape, 5);
  ASSERT_EQ(whole.num_splits.as<std::int32_t>()[3], 3);
  ASSERT_GT(cut.num_splits.as<std::int32_t>()[1], 1);
  // Other roundings, so other bits somewhere; the same values within the bounds.
  const DecodeResult a = run_decode(whole, 1, DType::kF32);
  const DecodeResult b = run_decode(cut, 1, DType::kF32);
  EXPECT_NE(bytes_of(a.out), bytes_of(b.out));
  expect_within_bounds(cut, b);
}

TEST(CpuDecode, BitsDoNotDependOnTheThreads) {
  for (const Formats& formats : kFormats) {
    const AttentionProblem problem = make_attention_problem(shape_of(formats), 4);
    const DecodeResult one = run_decode(problem, 1);
    for (const int threads : {2, 5}) {
      const DecodeResult many = run_decode(problem, threads);
      EXPECT_EQ(bytes_of(one.out), bytes_of(many.out));
      EXPECT_EQ(bytes_of(one.lse), bytes_of(many.lse));
    }
  }
}

TEST(CpuDecode, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  AttentionProblemShape shape;
  shape.visible = {{0}, {5, 0, 3}, {0, 0}};
  const AttentionProblem problem = make_attention_problem(shape);
  const DecodeResult result = run_decode(problem);
  const auto outs = values_of(result.out), lses = values_of(result.lse);
  for (const std::int64_t t : {0, 2, 4, 5}) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      EXPECT_EQ(lses[t * shape.heads + h], kEmptyLse);
      EXPECT_EQ(outs[(t * shape.heads + h) * shape.latent], 0.0F);
    }
  }
}

// q_scale 2, k_scale 3, every latent code 0x30 (0.5): 1.5. None applied 0.5, twice 4.5, q's 1.0,
// both 3.0.
TEST(CpuDecode, AppliesTheKeyScaleOnceToTheOutput) {
  for (const Formats& formats : kFormats) {
    AttentionProblemShape shape = shape_of(formats);
    shape.q_scale = 2.0F;
    shape.k_scale = 3.0F;
    const AttentionProblem problem = make_attention_problem(shape);
    const TensorView latents = problem.cache().data.narrow(2, 0, shape.latent);
    host_device().copy_strided(
        latents, filled(shape.cache_dtype, latents.shape, "constant", [](auto) { return 0.5F; }),
        kHostStream);
    const DecodeResult result = run_decode(problem);
    const float expected = formats.cache == DType::kE4M3 ? 1.5F : 0.5F;
    EXPECT_EQ(values_of(result.out.view().select(0, 0)),
              std::vector<float>(static_cast<std::size_t>(shape.heads * shape.latent), expected));
  }
}

// The same bytes with q_scale halved and k_scale doubled: the same LSE, twice the output, bit for
// bit; on the pair path softmax_scale takes the place of q_scale.
TEST(CpuDecode, ScalesAppearOnceInLogitsAndOnceInOutputs) {
  for (const Formats& formats : kFormats) {
    if (formats.cache != DType::kE4M3) continue;
    AttentionProblem problem = make_attention_problem(shape_of(formats));
    const DecodeResult before = run_decode(problem, 1, DType::kF32);
    problem.shape.k_scale *= 2.0F;
    (formats.query == DType::kE4M3 ? problem.shape.q_scale : problem.shape.softmax_scale) *= 0.5F;
    const DecodeResult after = run_decode(problem, 1, DType::kF32);
    EXPECT_EQ(bytes_of(before.lse), bytes_of(after.lse));
    std::vector<float> doubled = values_of(before.out);
    for (float& x : doubled) x *= 2.0F;
    EXPECT_EQ(values_of(after.out), doubled);
  }
}

TEST(CpuDecode, ABf16CacheIgnoresTheScales) {
  AttentionProblem problem = make_attention_problem(shape_of(kFormats[0]));
  const DecodeResult before = run_decode(problem);
  problem.shape.k_scale = 3.0F;
  problem.shape.q_scale = 2.0F;
  const DecodeResult after = run_decode(problem);
  EXPECT_EQ(bytes_of(before.out), bytes_of(after.out));
  EXPECT_EQ(bytes_of(before.lse), bytes_of(after.lse));
}

// 13 tokens in pages of 4: the last 3 slots hold 0x7F. On two ranks 7 and 6 tokens, 1 and 2 slots.
TEST(CpuDecode, NaNInUnfilledSlotsChangesNothing) {
  for (const std::int32_t keys : {13, 7, 6}) {
    AttentionProblemShape shape;
    shape.page = 4;
    shape.visible = {{keys}};
    const AttentionProblem problem = make_attention_problem(shape);
    const DecodeResult poisoned = run_decode(problem);
    const TensorView data = problem.cache().data;
    const auto* table = problem.block_table.as<const std::int32_t>();
    for (std::int64_t k = keys; k < (keys + 3) / 4 * 4; ++k) {
      host_device().fill_bytes(data.as<unsigned char>() + offset_of(data, table[k / 4], k % 4), 0,
                               static_cast<std::size_t>(shape.width()), kHostStream);
    }
    const DecodeResult zeroed = run_decode(problem);
    EXPECT_EQ(bytes_of(poisoned.out), bytes_of(zeroed.out));
    EXPECT_EQ(bytes_of(poisoned.lse), bytes_of(zeroed.lse));
    for (const float x : values_of(poisoned.out)) ASSERT_TRUE(std::isfinite(x));
  }
}

// Hidden NaN would be the worst a reference can do.
TEST(CpuDecode, NaNInAQueryStaysVisibleInItsRowAlone) {
  for (const std::int64_t parts : {1, 4}) {
    const AttentionProblem problem = make_attention_problem({}, parts);
    poison(problem.query.view().select(0, 0).select(0, 1));
    const DecodeResult result = run_decode(problem);
    const auto outs = values_of(result.out), lses = values_of(result.lse);
    for (std::int64_t row = 0; row < problem.rows() * problem.shape.heads; ++row) {
      EXPECT_EQ(std::isnan(lses[row]), row == 1) << row;
      EXPECT_EQ(std::isnan(outs[row * problem.shape.latent]), row == 1) << row;
    }
  }
}

TEST(CpuDecode, PageNumbersDoNotMatter) {
  AttentionProblemShape shape;
  shape.visible = {{200}, {65, 66}};
  const AttentionProblem a = make_attention_problem(shape);
  AttentionProblem b = make_attention_problem(shape);
  // Swap two pages and their table entries.
  std::int32_t* table = b.block_table.as<std::int32_t>();
  const TensorView cache = b.cache().data;
  const Tensor first = copied_to_host(cache.select(0, table[0]), kHostStream);
  host_device().copy_strided(cache.select(0, table[0]), cache.select(0, table[3]), kHostStream);
  host_device().copy_strided(cache.select(0, table[3]), first, kHostStream);
  std::swap(table[0], table[3]);
  EXPECT_EQ(bytes_of(run_decode(a).out), bytes_of(run_decode(b).out));
}

// A captured step keeps its addresses; lengths and schedule in them are new at every replay.
TEST(CpuDecode, TheSameTensorsServeOtherLengths) {
  AttentionProblemShape shape;
  shape.visible = {{4096}, {1}, {64}, {65}};
  const AttentionProblem problem = make_attention_problem(shape);
  CpuAttentionOps ops(1);
  const std::vector<std::vector<std::int32_t>> replays = {
      {64, 1, 64, 64}, {4096, 1, 0, 0}, {64, 1, 64, 65}};
  for (const auto& lengths : replays) {
    std::copy(lengths.begin(), lengths.end(), problem.lengths.as<std::int32_t>());
    std::copy(lengths.begin(), lengths.end(), problem.visible.as<std::int32_t>());
    ops.build_schedule(problem.schedule(), problem.lengths, {shape.heads, 1}, kHostStream);
    expect_within_bounds(problem, run_decode(problem));
  }
}

// The schedule is followed: one that covers less loses keys, as on a device.
TEST(CpuDecode, KeysNoPartNamesAreNotAttended) {
  AttentionProblemShape shape;
  shape.visible = {{300}};
  const AttentionProblem problem = make_attention_problem(shape);
  problem.lengths.as<std::int32_t>()[0] = 64;
  CpuAttentionOps(1).build_schedule(problem.schedule(), problem.lengths, {shape.heads, 1},
                                    kHostStream);
  const DecodeResult stale = run_decode(problem);
  EXPECT_FALSE(compare(stale.lse, expect_attention(problem, DType::kBF16).lse).pass());
  problem.visible.as<std::int32_t>()[0] = 64;
  expect_within_bounds(problem, stale);
}

TEST(CpuDecode, RefusesWhatItCannotFollow) {
  const AttentionProblem problem = make_attention_problem({}, 3);
  const auto message_of = [&](auto&& change, auto&& restore) -> std::string {
    change();
    std::string message;
    try {
      run_decode(problem);
    } catch (const Error& error) {
      message = error.what();
    }
    restore();
    return message;
  };
  std::int32_t* table = problem.block_table.as<std::int32_t>();
  const std::int32_t page = table[1];
  EXPECT_NE(message_of([&] { table[1] = 1000; }, [&] { table[1] = page; })
                .find("block_table[0][1] = 1000"),
            std::string::npos);
  std::int32_t* parts = problem.parts.as<std::int32_t>();
  const std::int32_t end_request = parts[2];
  EXPECT_NE(message_of([&] { parts[2] = 9; }, [&] { parts[2] = end_request; })
                .find("part 0: end request = 9"),
            std::string::npos);
  const Tensor parts_before = copied_to_host(problem.parts, kHostStream);
  EXPECT_NE(message_of([&] { std::copy(parts, parts + 8, parts + 8); },
                       [&] { std::copy_n(parts_before.as<std::int32_t>(), 24, parts); })
                .find("written by two parts"),
            std::string::npos);
  std::int32_t* visible = problem.visible.as<std::int32_t>();
  EXPECT_NE(message_of([&] { visible[0] = 100000; }, [&] { visible[0] = 200; })
                .find("past the 14 columns"),
            std::string::npos);
  EXPECT_EQ(message_of([] {}, [] {}), "");
}

TEST(CpuDecode, AQuantisedQueryNeedsAnFp8Cache) {
  AttentionProblemShape shape;
  shape.query_dtype = DType::kE4M3;
  shape.cache_dtype = DType::kBF16;
  EXPECT_THROW(run_decode(make_attention_problem(shape)), Unsupported);
}

TEST(CpuSchedule, IsBuiltForTheHeadsItIsTold) {
  const CpuAttentionOps ops(1);
  EXPECT_EQ(ops.num_parts({16, 1}), 132);
  EXPECT_EQ(ops.num_parts({128, 1}), 66);
  EXPECT_EQ(ops.num_parts({64, 2}), 66);
}

}  // namespace
}  // namespace mladcp
