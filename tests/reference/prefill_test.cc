// The chunked prefill step on the CPU operations, all ranks together, against the oracle.
#include "core/prefill.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "collectives/call_log.h"
#include "collectives/fake_collective.h"
#include "core/error.h"
#include "tests/reference/prefill_problem.h"

namespace mladcp {
namespace {

using ::testing::IsEmpty;

PrefillShape shape_of(std::int64_t world_size, std::int64_t interleave, std::int64_t workspace,
                      const std::vector<PrefillRequest>& requests, DType kv_dtype = DType::kE4M3) {
  PrefillShape shape;
  shape.sharding = {world_size, interleave};
  shape.workspace_rows = workspace;
  shape.requests = requests;
  shape.kv_dtype = kv_dtype;
  return shape;
}

// Contexts and new tokens: none, one, uneven; a request with context but nothing new.
const std::vector<PrefillRequest> kMixed = {{0, 7}, {65, 70}, {130, 1}, {9, 0}, {0, 0}, {33, 5}};

struct Grid {
  std::int64_t world_size;
  std::int64_t interleave;
  std::int64_t workspace_rows;
};

const std::vector<Grid> kGrid = {{1, 1, 16},  {1, 4, 256}, {2, 1, 16},  {2, 16, 32}, {3, 2, 48},
                                 {3, 4, 144}, {4, 1, 512}, {4, 16, 64}, {8, 2, 16},  {8, 16, 256}};

TEST(Prefill, IsOneSoftmaxOverContextAndNewRows) {
  for (const Grid& g : kGrid) {
    for (const DType kv_dtype : {DType::kE4M3, DType::kBF16}) {
      SCOPED_TRACE(testing::Message()
                   << "N " << g.world_size << " I " << g.interleave << " workspace "
                   << g.workspace_rows << " " << name(kv_dtype));
      const PrefillWorld world(
          shape_of(g.world_size, g.interleave, g.workspace_rows, kMixed, kv_dtype));
      // Within the bound, and the bound is no larger than the errors warrant.
      EXPECT_GT(expect_oracle(world, run_ranks(world)), 0.25);
    }
  }
}

// With a BF16 cache the rows of the context are the rows of the prompt.
TEST(Prefill, OfABf16CacheIsOneCausalSoftmaxOverThePrompt) {
  const PrefillShape shape = shape_of(2, 4, 64, {{0, 129}, {0, 71}}, DType::kBF16);
  const PrefillWorld one_step(shape);
  PrefillWorld two_steps(shape);
  two_steps.begin_step({{100, 29}, {31, 40}});
  std::vector<std::int64_t> tail_rows(69);
  std::iota(tail_rows.begin(), tail_rows.begin() + 29, 100);
  std::iota(tail_rows.begin() + 29, tail_rows.end(), 129 + 31);
  PrefillFormats formats;
  formats.projection_unit = formats.out_unit = 0.0;
  formats.fp32_unit = 0x1p-50;  // both in fp64: other orders of summation
  const PrefillReference whole = prefill_reference(one_step.problem(), 1, tail_rows);
  const ExpectedPrefill tail =
      expect_prefill(prefill_reference(two_steps.problem(), 1, rows_up_to(69)), formats);
  for (std::size_t i = 0; i < whole.out.size(); ++i) {
    ASSERT_LE(std::abs(whole.out[i] - tail.out.value[i]), tail.out.bound[i]);
  }
  for (std::size_t i = 0; i < whole.lse.size(); ++i) {
    ASSERT_LE(std::abs(whole.lse[i] - tail.lse.value[i]), tail.lse.bound[i]);
  }
}

// Latents whose two halves cancel in every value: the exact values are 0, the fp32 sums are not.
TEST(Prefill, ValuesThatCancelAreJudgedByTheTermsOfTheirSums) {
  PrefillShape shape = shape_of(2, 4, 64, {{40, 3}, {0, 1}, {0, 70}}, DType::kBF16);
  PrefillModel model = random_model(shape);
  const std::int64_t half = shape.dims.latent / 2;
  for (const Tensor& rows : model.rows) {
    for (std::int64_t t = 0; t < rows.shape()[0]; ++t) {
      auto* row = rows.as<BFloat16>() + t * shape.dims.row();
      for (std::int64_t l = 0; l < half; ++l) {
        row[half + l] = BFloat16::from_float(-row[l].to_float());
      }
    }
  }
  const std::int64_t width = shape.dims.value;
  for (std::int64_t h = 0; h < model.w_uv.shape()[0]; ++h) {
    auto* weight = model.w_uv.as<BFloat16>() + h * 2 * half * width;
    std::copy_n(weight, half * width, weight + half * width);
  }
  const PrefillWorld world(shape, std::move(model));
  EXPECT_EQ(prefill_reference(world.problem(), 0, rows_up_to(74)).value_squares,
            std::vector<double>(static_cast<std::size_t>(74 * width), 0.0));
  expect_oracle(world, run_ranks(world));
}

// Exponentials that fp32 cannot hold become 0 or stay near 2^-126. Where only such keys have a
// value, that is all of the output: in a chunk of their own, beside the others, and among the new.
TEST(Prefill, AllowsForExponentialsBelowTheSmallestNormal) {
  for (const float distance : {80.0F, 87.0F, 88.0F, 89.0F, 104.0F, 150.0F, 768.0F}) {
    SCOPED_TRACE(distance);
    PrefillShape shape = shape_of(2, 4, 32, {{40, 3}, {0, 9}, {7, 1}}, DType::kBF16);
    shape.softmax_scale = 1.0F;
    PrefillModel model = random_model(shape);
    for (const Tensor& rows : model.rows) {
      std::fill_n(rows.as<BFloat16>(), rows.view().elements(), BFloat16{});
      for (std::int64_t t = 1; t < rows.shape()[0]; ++t) {
        auto* row = rows.as<BFloat16>() + t * shape.dims.row();
        row[0] = BFloat16::from_float(1.0F);
        row[shape.dims.latent] = BFloat16::from_float(-distance);
      }
    }
    for (const Tensor& queries : model.queries) {
      for (std::int64_t i = 0; i < queries.view().elements(); ++i) {
        const bool rope_0 = i % (shape.dims.nope + shape.dims.rope) == shape.dims.nope;
        queries.as<BFloat16>()[i] = BFloat16::from_float(rope_0 ? 1.0F : 0.0F);
      }
    }
    const PrefillWorld world(shape, std::move(model));
    expect_oracle(world, run_ranks(world));
    const PrefillReference reference = prefill_reference(world.problem(), 0, rows_up_to(13));
    const ExpectedPrefill expected = expect_prefill(reference, {});
    for (std::size_t i = 0; i < expected.out.bound.size(); ++i) {
      EXPECT_LT(expected.out.bound[i], std::fmax(1e-35, 0.1 * std::fabs(expected.out.value[i])));
    }
  }
}

// What a turn wrote is the next turn's context, on every rank.
TEST(Prefill, ThreeTurnsReadWhatTheEarlierOnesWrote) {
  for (const DType kv_dtype : {DType::kE4M3, DType::kBF16}) {
    for (const Grid& g : {Grid{1, 1, 48}, Grid{2, 4, 32}, Grid{3, 1, 96}, Grid{4, 16, 64}}) {
      SCOPED_TRACE(testing::Message() << "N " << g.world_size << " " << name(kv_dtype));
      std::vector<PrefillRequest> requests = {{0, 37}, {20, 1}, {0, 64}};
      PrefillWorld world(
          shape_of(g.world_size, g.interleave, g.workspace_rows, requests, kv_dtype));
      for (const std::int64_t added : {17, 1, 30}) {
        expect_oracle(world, run_ranks(world));
        for (PrefillRequest& request : requests) {
          request = {request.context + request.new_tokens, added};
        }
        world.begin_step(requests);
      }
      expect_oracle(world, run_ranks(world));
    }
  }
}

TEST(Prefill, OneRankExchangesNothing) {
  const PrefillWorld world(shape_of(1, 4, 32, kMixed));
  CallLog log;
  FakeCollective alone(0, 1, log);
  EXPECT_GT(run_rank(world, alone).chunks, 1);
  EXPECT_THAT(log.records(), IsEmpty());
}

TEST(Prefill, GathersEachChunkOnceOnDimZero) {
  const PrefillWorld world(shape_of(4, 2, 64, kMixed));
  CallLog log;
  FakeCollective collective(2, 4, log);
  run_rank(world, collective);
  const PrefillPlan plan = world.plan(2);
  const std::vector<CallRecord> records = log.of_rank(2);
  ASSERT_EQ(records.size(), plan.context.chunks.size());
  for (std::size_t c = 0; c < records.size(); ++c) {
    const std::int64_t toks = plan.context.chunks[c].toks;
    const CollectiveCall wanted{
        CollectiveOp::kAllGather,    0, DType::kBF16, {toks, 48}, {4 * toks, 48}, "context",
        static_cast<std::int64_t>(c)};
    EXPECT_EQ(records[c].call, wanted) << describe(records[c].call);
  }
}

TEST(Prefill, WithoutNewTokensStillEntersEveryCollective) {
  const PrefillWorld world(shape_of(4, 2, 64, {{65, 0}, {130, 0}}));
  CallLog log;
  FakeCollective collective(1, 4, log);
  const PrefillResult result = run_rank(world, collective);
  EXPECT_EQ(result.output.shape(), (Shape{0, 3, 10}));
  EXPECT_EQ(static_cast<std::int64_t>(log.records().size()), result.chunks);
  EXPECT_GT(result.chunks, 1);
}

TEST(Prefill, WithoutContextExchangesNothing) {
  const PrefillWorld world(shape_of(4, 2, 64, {{0, 65}, {0, 3}}));
  CallLog log;
  FakeCollective collective(1, 4, log);
  run_rank(world, collective);
  EXPECT_THAT(log.records(), IsEmpty());
  expect_oracle(world, run_ranks(world));
}

// The first request fills its chunks alone; those of the second leave its bits as they are.
TEST(Prefill, ChunksOfOthersLeaveAResultUntouched) {
  const std::vector<PrefillRequest> both = {{128, 9}, {64, 5}};
  const PrefillWorld together(shape_of(4, 1, 64, both));
  PrefillWorld alone(shape_of(4, 1, 64, both));
  alone.begin_step({{128, 9}, {0, 5}});
  const std::vector<PrefillResult> a = run_ranks(together);
  const std::vector<PrefillResult> b = run_ranks(alone);
  EXPECT_EQ(a[0].chunks, 3);
  EXPECT_EQ(b[0].chunks, 2);
  for (std::size_t r = 0; r < a.size(); ++r) {
    const auto head = [](const Tensor& t) { return bytes_of(t.view().narrow(0, 0, 9)); };
    EXPECT_EQ(head(a[r].running), head(b[r].running));
    EXPECT_EQ(head(a[r].lse), head(b[r].lse));
    EXPECT_EQ(head(a[r].output), head(b[r].output));
  }
}

TEST(Prefill, RepeatsBitForBitOnAnyNumberOfThreads) {
  const PrefillWorld world(shape_of(2, 4, 64, kMixed));
  const std::vector<PrefillResult> first = run_ranks(world, 1);
  for (const int threads : {1, 2, 5}) {
    const std::vector<PrefillResult> again = run_ranks(world, threads);
    for (std::size_t r = 0; r < first.size(); ++r) EXPECT_TRUE(same_bits(first[r], again[r]));
  }
}

// Fills everything a chunk may not depend on with NaN before each gather: stale rows of earlier
// chunks in all workspace buffers. Padding rows of the caches are NaN already.
class PoisoningCacheOps final : public CacheOps {
 public:
  PoisoningCacheOps(CacheOps& inner, const PrefillWorkspace& workspace, std::int64_t most_rows)
      : inner_(inner), workspace_(workspace), most_rows_(most_rows) {}

  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override {
    inner_.write(cache, kv_c, k_pe, slots, stream);
  }
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override {
    for (std::int64_t c = 0; c < workspace_.chunks(); ++c) {
      for (const TensorView& view :
           {workspace_.local_rows(c), workspace_.gathered_rows(c), workspace_.context_rows(c)}) {
        poison(view);
      }
    }
    for (const TensorView& view :
         {workspace_.key(most_rows_), workspace_.value(most_rows_), workspace_.partial(),
          workspace_.partial_lse(), workspace_.output()}) {
      poison(view);
    }
    inner_.gather_and_dequantize(out, cache, block_table, chunk, stream);
  }
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override {
    inner_.reorganise(out, gathered, source_rows, stream);
  }

 private:
  CacheOps& inner_;
  const PrefillWorkspace& workspace_;
  std::int64_t most_rows_;
};

TEST(Prefill, NothingStaleOrPaddedMatters) {
  for (const Grid& g : kGrid) {
    SCOPED_TRACE(testing::Message() << "N " << g.world_size << " I " << g.interleave);
    const PrefillWorld world(shape_of(g.world_size, g.interleave, g.workspace_rows, kMixed));
    const std::vector<PrefillResult> clean = run_ranks(world);
    InProcessGroup group(static_cast<int>(g.world_size));
    std::vector<PrefillResult> poisoned(clean.size());
    group.run([&](Collective& collective) {
      const auto step = [&](const PrefillWorkspace& workspace, const Ops& ops) {
        PoisoningCacheOps cache(ops.cache, workspace, std::max<std::int64_t>(83, g.workspace_rows));
        poison(workspace.running());
        poison(workspace.running_lse());
        poison(workspace.new_rows());
        prefill(config_of(world.shape()), world.shape().softmax_scale,
                world.inputs(collective.rank()), workspace,
                {ops.query, cache, ops.attention, ops.combine}, collective, kHostStream);
      };
      poisoned[static_cast<std::size_t>(collective.rank())] = run_rank(world, collective, 1, step);
    });
    for (std::size_t r = 0; r < clean.size(); ++r) EXPECT_TRUE(same_bits(clean[r], poisoned[r]));
  }
}

TEST(Prefill, RefusesAForeignGroupAndForeignShapes) {
  const PrefillWorld world(shape_of(4, 2, 64, kMixed));
  CallLog log;
  FakeCollective two(0, 2, log);
  EXPECT_THROW(run_rank(world, two), InvalidArgument);
  FakeCollective four(0, 4, log);
  const auto with = [&](const std::function<void(PrefillInputs&)>& change) {
    return [&, change](const PrefillWorkspace& workspace, const Ops& ops) {
      PrefillInputs inputs = world.inputs(0);
      change(inputs);
      prefill(config_of(world.shape()), 1.0F, inputs, workspace, ops, four, kHostStream);
    };
  };
  const std::vector<std::function<void(PrefillInputs&)>> changes = {
      [](PrefillInputs& in) { in.query = in.query.narrow(1, 0, 2); },
      [](PrefillInputs& in) { in.kv_c = in.kv_c.narrow(0, 0, 5); },
      [](PrefillInputs& in) { in.k_pe = in.k_pe.narrow(1, 0, 5); },
      [](PrefillInputs& in) { in.w_uk = in.w_uk.transposed(1, 2); },
      [](PrefillInputs& in) { in.w_uv = in.w_uv.narrow(0, 0, 2); },
  };
  for (const auto& change : changes) {
    EXPECT_THROW(run_rank(world, four, 1, with(change)), InvalidArgument);
  }
  EXPECT_THAT(log.records(), IsEmpty());
}

}  // namespace
}  // namespace mladcp
