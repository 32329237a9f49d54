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

std::vector<std::int64_t> rows_up_to(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
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
    const std::vector<float> out = values_of(golden().tensor("out").narrow(0, context, added));
    const std::vector<float> lse = values_of(golden().tensor("lse").narrow(0, context, added));
    for (std::int64_t head = 0; head < kHeads; ++head) {
      SCOPED_TRACE(testing::Message() << "context " << context << " head " << head);
      const PrefillReference reference = prefill_reference(problem, head, rows_up_to(added));
      PrefillFormats formats;
      formats.projection_unit = 0.0;
      formats.out_unit = 0x1p-24;
      formats.fp32_unit = 0x1p-27;  // 16 of it: query and key rounded to fp32 for the file
      const PrefillBounds bounds = prefill_bounds(reference, formats);
      expect_within("out", out, kHeads * kDims.value, head * kDims.value, reference.out, bounds.out,
                    kDims.value);
      expect_within("lse", lse, kHeads, head, reference.lse, bounds.lse, 1);
    }
  }
}

// The prompt prefilled a piece at a time, every piece against the cache of the earlier ones. Its
// inputs are rounded to bf16: how far that moves the exact result is added to the bound.
TEST(PrefillGolden, APromptInPiecesGivesThatAttention) {
  struct Case {
    std::int64_t world_size, interleave, piece, workspace_rows;
  };
  const std::vector<float> out = values_of(golden().tensor("out"));
  const std::vector<float> lse = values_of(golden().tensor("lse"));
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
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const std::int64_t h = shape.local_heads;
        const PrefillResult& result = results[static_cast<std::size_t>(head / h)];
        const PrefillReference reference =
            prefill_reference(world.problem(), head, rows_up_to(added));
        PrefillFormats formats;
        formats.chunks = result.chunks;
        PrefillBounds bounds = prefill_bounds(reference, formats);
        std::vector<double> wanted_out, wanted_lse;
        for (std::int64_t i = 0; i < added; ++i) {
          const std::int64_t row = (done + i) * kHeads + head;
          wanted_lse.push_back(lse[static_cast<std::size_t>(row)]);
          bounds.lse[static_cast<std::size_t>(i)] +=
              std::abs(wanted_lse.back() - reference.lse[static_cast<std::size_t>(i)]);
          for (std::int64_t v = 0; v < kDims.value; ++v) {
            const auto at = static_cast<std::size_t>(i * kDims.value + v);
            wanted_out.push_back(out[static_cast<std::size_t>(row * kDims.value + v)]);
            bounds.out[at] += std::abs(wanted_out.back() - reference.out[at]);
          }
        }
        expect_within("out", values_of(result.output), h * kDims.value, head % h * kDims.value,
                      wanted_out, bounds.out, kDims.value);
        expect_within("lse", values_of(result.lse), h, head % h, wanted_lse, bounds.lse, 1);
      }
    }
  }
}

}  // namespace
}  // namespace mladcp
