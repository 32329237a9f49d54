// Decode attention on the GPU against FP64: every head count, page, dtype pair and edge; poison
// everywhere else.
#include <vector>

#include "core/error.h"
#include "core/scheduler.h"
#include "tests/kernels/decode_case.h"

namespace mladcp {
namespace {

using DecodeTest = DecodeGpuTest;

struct Formats {
  DType query;
  DType cache;
};
constexpr Formats kFormats[] = {
    {DType::kBF16, DType::kBF16}, {DType::kE4M3, DType::kE4M3}, {DType::kBF16, DType::kE4M3}};

const std::vector<std::vector<std::int32_t>>& edges() {
  static const std::vector<std::vector<std::int32_t>>& lengths =
      *new std::vector<std::vector<std::int32_t>>{
          {0},   {1}, {15, 16, 17}, {31, 32, 33},     {63, 64, 65}, {127, 128},
          {129}, {},  {0, 0, 1},    {200, 3, 0, 191}, {449}};
  return lengths;
}

std::string label(const AttentionProblemShape& s, std::int64_t parts) {
  return std::string(name(s.query_dtype)) + " over " + std::string(name(s.cache_dtype)) + ", " +
         std::to_string(s.heads) + " heads, page " + std::to_string(s.page) + ", " +
         std::to_string(parts) + " parts";
}

TEST_F(DecodeTest, EveryHeadCountAndPage) {
  for (const DecodeKernels kernels : {DecodeKernels::kGeneric, DecodeKernels::kBest}) {
    CudaAttentionOps ops(device(), kernels);
    std::uint64_t seed = 1;
    for (const Formats& formats : kFormats) {
      for (const std::int64_t heads : {1, 8, 16, 48, 64, 96, 128}) {
        for (const std::int64_t page : {16, 32, 64, 128}) {
          // Both grids in full would repeat each other: every head count meets every page, parts
          // vary along.
          AttentionProblemShape shape = full_width(formats.query, formats.cache);
          shape.heads = heads;
          shape.page = page;
          shape.visible = edges();
          shape.seed = ++seed;
          const std::int64_t parts = seed % 3 == 0 ? 1 : (seed % 3 == 1 ? 7 : 0);
          SCOPED_TRACE(label(shape, parts));
          expect_decodes(make_attention_problem(shape, parts), ops, 9);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// One request over many parts: splits at every block, some of them without a visible key for the
// shorter rows.
TEST_F(DecodeTest, SplitsAtEveryBlock) {
  for (const DecodeKernels kernels : {DecodeKernels::kGeneric, DecodeKernels::kBest}) {
    CudaAttentionOps ops(device(), kernels);
    for (const Formats& formats : kFormats) {
      for (const std::int64_t parts : {1, 2, 3, 5, 31, 132}) {
        AttentionProblemShape shape = full_width(formats.query, formats.cache);
        shape.heads = 16;
        shape.page = 64;
        shape.visible = {{1999, 5, 0, 1940}, {0}, {777}};
        shape.seed = static_cast<std::uint64_t>(parts);
        SCOPED_TRACE(label(shape, parts));
        expect_decodes(make_attention_problem(shape, parts), ops);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(DecodeTest, TakesAQueryPair) {
  CudaAttentionOps ops(device());
  for (const DType cache : {DType::kBF16, DType::kE4M3}) {
    AttentionProblemShape shape = full_width(DType::kBF16, cache);
    shape.heads = 5;
    shape.page = 64;
    shape.query_kind = QueryKind::kPair;
    shape.visible = edges();
    expect_decodes(make_attention_problem(shape), ops);
  }
}

// A bf16 query whose rows differ by 2^60 in size, over codes: the scaling into f16 must not show.
TEST_F(DecodeTest, QueryRowsOfAnySize) {
  CudaAttentionOps ops(device());
  for (const float sigma : {0x1p-60F, 1.0F, 0x1p30F}) {
    AttentionProblemShape shape = full_width(DType::kBF16, DType::kE4M3);
    shape.heads = 3;
    shape.page = 64;
    shape.sigma = 1.0F;
    shape.visible = {{70}, {1}, {129, 128}};
    shape.softmax_scale = 0.0417F / sigma;
    AttentionProblem p = make_attention_problem(shape);
    auto* query = p.query.as<BFloat16>();
    for (std::int64_t i = 0; i < p.query.view().elements(); ++i) {
      query[i] = BFloat16::from_float(query[i].to_float() * sigma);
    }
    SCOPED_TRACE(sigma);
    expect_decodes(p, ops);
  }
}

// Scaling laws: q_scale halved and k_scale doubled with the same bytes keep the LSE and double the
// output, bitwise.
TEST_F(DecodeTest, ScaleContract) {
  for (const DecodeKernels kernels : {DecodeKernels::kGeneric, DecodeKernels::kBest}) {
    CudaAttentionOps ops(device(), kernels);
    AttentionProblemShape shape = full_width(DType::kE4M3, DType::kE4M3);
    shape.heads = 16;
    shape.page = 64;
    shape.visible = {{300}, {65}};
    const AttentionProblem p = make_attention_problem(shape, 3);
    DecodeOnGpu g = upload_problem(p, ops);
    const Result once = run(p, g, ops);
    AttentionProblem turned = make_attention_problem(shape, 3);
    turned.shape.q_scale = shape.q_scale / 2;
    g.k_scale = shape.k_scale * 2;
    const Result twice = run(turned, g, ops);
    expect_same_bytes("lse", download(twice.lse), download(once.lse));
    const std::vector<float> a = values_of(download(once.out));
    const std::vector<float> b = values_of(download(twice.out));
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(2 * a[i], b[i]) << i;
  }
}

TEST_F(DecodeTest, RepeatsBitwise) {
  for (const DecodeKernels kernels : {DecodeKernels::kGeneric, DecodeKernels::kBest}) {
    CudaAttentionOps ops(device(), kernels);
    for (const Formats& formats : kFormats) {
      AttentionProblemShape shape = full_width(formats.query, formats.cache);
      shape.heads = 48;
      shape.page = 64;
      shape.visible = {{1500, 1501}, {0}, {64}, {700}};
      const AttentionProblem p = make_attention_problem(shape, 40);
      const DecodeOnGpu g = upload_problem(p, ops);
      const Result first = run(p, g, ops);
      for (int i = 0; i < 20; ++i) {
        const Result again = run(p, g, ops);
        expect_same_bytes("out", download(again.out), download(first.out));
        expect_same_bytes("lse", download(again.lse), download(first.lse));
        if (HasFailure()) return;
      }
    }
  }
}

// Pages moved to other places, with the table: bitwise the same.
TEST_F(DecodeTest, PagePermutationIsBitwise) {
  CudaAttentionOps ops(device());
  AttentionProblemShape shape = full_width(DType::kE4M3, DType::kE4M3);
  shape.heads = 16;
  shape.page = 64;
  shape.visible = {{500}, {129, 130}};
  const AttentionProblem p = make_attention_problem(shape, 3);
  const DecodeOnGpu g = upload_problem(p, ops);
  const Result first = run(p, g, ops);
  DecodeOnGpu moved = upload_problem(p, ops, 32);  // other row and page strides as well
  const Result second = run(p, moved, ops);
  expect_same_bytes("out", download(second.out), download(first.out));
  expect_same_bytes("lse", download(second.lse), download(first.lse));
}

// The schedule built on the card is the host's, and decode under it holds.
TEST_F(DecodeTest, SchedulesOnTheCard) {
  CudaAttentionOps ops(device());
  AttentionProblemShape shape = full_width(DType::kE4M3, DType::kE4M3);
  shape.heads = 128;
  shape.page = 64;
  shape.visible = {{4096}, {1}, {}, {0}, {65}, {2000}};
  const ScheduleShape schedule_shape = {shape.heads, 1};
  const AttentionProblem p = make_attention_problem(shape, ops.num_parts(schedule_shape));
  DecodeOnGpu g = upload_problem(p, ops);
  device().fill_bytes(g.parts.view().data, 0xFF, static_cast<std::size_t>(g.parts.view().bytes()),
                      stream());
  ops.build_schedule(g.schedule(), g.lengths, schedule_shape, stream());
  expect_same_bytes("num_splits", download(g.num_splits), p.num_splits);
  const Result result = run(p, g, ops);
  expect_within_bounds(download(result.out), download(result.lse),
                       expected_attention(p, profile_of(p, ops), 31), 31);
}

TEST_F(DecodeTest, RefusesWhatItDoesNotOffer) {
  CudaAttentionOps ops(device());
  AttentionProblemShape shape = full_width(DType::kE4M3, DType::kE4M3);
  shape.visible = {{100}};
  const auto message = [&](const AttentionProblemShape& s, std::int64_t pad) {
    const AttentionProblem p = make_attention_problem(s);
    try {
      run(p, upload_problem(p, ops, pad), ops);
      return std::string("nothing was refused");
    } catch (const Unsupported& error) {
      return std::string(error.what());
    }
  };
  const auto expect_says = [](const std::string& text, const char* word) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  AttentionProblemShape odd = shape;
  odd.page = 8;
  expect_says(message(odd, 16), "page size 8");
  expect_says(message(shape, 3), "multiples of 16");
  odd = shape;
  odd.query_dtype = DType::kE4M3;
  odd.cache_dtype = DType::kBF16;
  expect_says(message(odd, 16), "e4m3 query over a bf16 cache");
  odd = shape;
  odd.rope = 32;
  expect_says(message(odd, 16), "576");
}

TEST_F(DecodeTest, ShortWorkspaceIsRefusedWithTheBytes) {
  CudaAttentionOps ops(device());
  AttentionProblemShape shape = full_width(DType::kE4M3, DType::kE4M3);
  shape.visible = {{100}};
  const AttentionProblem p = make_attention_problem(shape);
  DecodeOnGpu g = upload_problem(p, ops);
  g.workspace = Tensor(device(), DType::kBytes, {100}, "workspace");
  EXPECT_THROW(run(p, g, ops), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
