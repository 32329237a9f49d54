// Hugging Face's DeepseekV3Attention over 160 tokens (golden/README.md), as oracle and as prefill.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "harness/safetensors.h"
#include "tests/reference/prefill_problem.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

constexpr std::int64_t kTokens = 160, kHeads = 8;
constexpr MlaDims kDims{512, 64, 128, 128};

const SafetensorsFile& golden() {
  static const SafetensorsFile file =
      read_safetensors(test_data_path("golden/hf_deepseek_v3_h8_s160.safetensors"));
  return file;
}

float softmax_scale() { return static_cast<float>(golden().metadata_number("softmax_scale")); }

// [a | b] along the last axis, rounded to dtype.
Tensor joined(const TensorView& a, const TensorView& b, DType dtype, const char* name) {
  Shape shape = a.shape;
  const int last = a.rank() - 1;
  shape[last] += b.shape[last];
  const Tensor wide = host_tensor(DType::kF32, shape, name);
  host_device().copy_strided(wide.view().narrow(last, 0, a.shape[last]), a, kHostStream);
  host_device().copy_strided(wide.view().narrow(last, a.shape[last], b.shape[last]), b,
                             kHostStream);
  return filled(dtype, shape, name, [&](std::int64_t i) { return wide.as<float>()[i]; });
}

Tensor golden_rows(DType dtype) {
  return joined(golden().tensor("kv_c").select(0, 0), golden().tensor("k_pe"), dtype, "rows");
}
Tensor golden_queries(DType dtype) {
  return joined(golden().tensor("q_nope"), golden().tensor("q_pe"), dtype, "query");
}

PrefillModel golden_model() {
  PrefillModel model;
  model.w_uk = copied_to_host(golden().tensor("w_uk"), kHostStream);
  model.w_uv = copied_to_host(golden().tensor("w_uv").transposed(1, 2), kHostStream);
  model.rows.push_back(golden_rows(DType::kBF16));
  model.queries.push_back(golden_queries(DType::kBF16));
  return model;
}

// fp64 there and here; inputs and results were rounded to fp32 when they were stored.
TEST(PrefillGolden, TheOracleIsThatAttention) {
  const Tensor rows = golden_rows(DType::kF32);
  const Tensor queries = golden_queries(DType::kF32);
  for (const std::int64_t context : {0, 1, 64, 159}) {
    const std::int64_t added = kTokens - context;
    const std::vector<PrefillRequest> requests = {{context, added}};
    const PrefillProblem problem{requests,
                                 softmax_scale(),
                                 queries.view().narrow(0, context, added),
                                 rows.view().narrow(0, 0, context),
                                 rows.view().narrow(0, context, added),
                                 golden().tensor("w_uk"),
                                 golden().tensor("w_uv").transposed(1, 2)};
    SCOPED_TRACE(testing::Message() << "context " << context);
    PrefillFormats formats;
    formats.projection_unit = 0.0;
    formats.out_unit = 0x1p-24;
    formats.fp32_unit = 0x1p-27;  // 16 of it: query and key rounded to fp32 for the file
    const ExpectedPrefill expected =
        expect_prefill(problem, 0, kHeads, rows_up_to(added), formats, 1);
    expect_within("out", golden().tensor("out").narrow(0, context, added), expected.out);
    expect_within("lse", golden().tensor("lse").narrow(0, context, added), expected.lse);
  }
}

// The prompt prefilled a piece at a time, every piece against the cache of the earlier ones. Its
// inputs are rounded to bf16: how far that moves the exact result is added to the bound.
void expect_golden(const PrefillResult& result, ExpectedPrefill expected, const TensorView& out,
                   const TensorView& lse) {
  const auto aim_at = [](Expected& wanted, const TensorView& tensor) {
    const std::vector<float> values = values_of(tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      wanted.bound[i] += std::abs(values[i] - wanted.value[i]);
      wanted.value[i] = values[i];
    }
  };
  aim_at(expected.out, out);
  aim_at(expected.lse, lse);
  expect_within("out", result.output, expected.out);
  expect_within("lse", result.lse, expected.lse);
}

TEST(PrefillGolden, APromptInPiecesGivesThatAttention) {
  struct Case {
    std::int64_t world_size, interleave, piece, workspace_rows;
  };
  for (const Case& c : {Case{1, 1, 160, 16}, Case{1, 4, 64, 48}, Case{2, 1, 33, 32},
                        Case{2, 16, 80, 160}, Case{4, 1, 50, 64}, Case{4, 16, 96, 128}}) {
    PrefillShape shape;
    shape.dims = kDims;
    shape.sharding = {c.world_size, c.interleave};
    shape.local_heads = kHeads / c.world_size;
    shape.workspace_rows = c.workspace_rows;
    shape.kv_dtype = DType::kBF16;
    shape.softmax_scale = softmax_scale();
    shape.requests = {{0, kTokens}};
    PrefillWorld world(shape, golden_model());
    for (std::int64_t done = 0; done < kTokens; done += c.piece) {
      const std::int64_t added = std::min(c.piece, kTokens - done);
      world.begin_step({{done, added}});
      SCOPED_TRACE(testing::Message() << "N " << c.world_size << " I " << c.interleave << " tokens "
                                      << done << " .. " << done + added - 1);
      const std::vector<PrefillResult> results = run_ranks(world);
      for (std::size_t r = 0; r < results.size(); ++r) {
        const std::int64_t h = shape.local_heads;
        const auto first = static_cast<std::int64_t>(r) * h;
        PrefillFormats formats;
        formats.chunks = results[r].chunks;
        const auto part = [&](const char* name) {
          return golden().tensor(name).narrow(0, done, added).narrow(1, first, h);
        };
        expect_golden(results[r],
                      expect_prefill(world.problem(), first, h, rows_up_to(added), formats, 1),
                      part("out"), part("lse"));
      }
    }
  }
}

}  // namespace
}  // namespace mladcp
