// Outputs of other people's implementations: FlashMLA's FP8 decode on an H200, and Hugging Face's
// DeepseekV3Attention in fp64.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "collectives/in_process_group.h"
#include "core/decode.h"
#include "harness/attention_dump.h"
#include "reference/cpu_ops.h"
#include "reference/device_lse.h"
#include "reference/error_bounds.h"
#include "tests/reference/host_tensors.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

constexpr std::int64_t kLatent = 512, kRope = 64, kRow = kLatent + kRope;

AttentionDump load_flashmla(const char* letter) {
  return read_attention_dump(
      test_data_path(std::string("golden/flashmla_fp8_") + letter + ".safetensors"));
}

// FlashMLA marks an empty row by LSE +inf; here it is -inf.
Tensor natural_lse(const TensorView& lse) {
  Tensor result = copied_to_host(lse, kHostStream);
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    float& x = result.as<float>()[i];
    if (x == std::numeric_limits<float>::infinity()) x = -x;
  }
  return result;
}

TEST(FlashMlaGolden, OutLiesWithinTheBoundAndLseIsTheDevicesOwn) {
  for (const char* letter : {"a", "c", "e"}) {
    SCOPED_TRACE(letter);
    const AttentionDump golden = load_flashmla(letter);
    const ExpectedAttention expected =
        expect_decode(golden.problem, profiles::kFlashMlaFp8, {}, 2).per_set[0];
    const Tensor lse = natural_lse(golden.lse());
    const Comparison out = compare(golden.out(), expected.out);
    const Comparison lse_exact = compare(lse, expected.lse);
    const Comparison lse_device =
        compare(lse, expect_device_lse(golden.problem, profiles::kFlashMlaFp8, 0, 2));
    EXPECT_TRUE(out.pass()) << out;
    EXPECT_TRUE(lse_exact.pass()) << lse_exact;
    EXPECT_TRUE(lse_device.pass()) << lse_device;
    std::printf("FlashMLA %s: out %.2f, lse %.2f of the bound, lse %.2f of the device model's\n",
                letter, out.worst_ratio, lse_exact.worst_ratio, lse_device.worst_ratio);
    // Not vacuous: correct results use a good part of what they may.
    EXPECT_GT(out.worst_ratio, 0.05) << out;
    EXPECT_GT(lse_exact.worst_ratio, 0.02) << lse_exact;
    EXPECT_GT(lse_device.worst_ratio, 0.05) << lse_device;
  }
}

// The same inputs through the operations on the host.
TEST(FlashMlaGolden, TheHostAgreesWithinItsOwnBounds) {
  for (const char* letter : {"a", "c", "e"}) {
    SCOPED_TRACE(letter);
    const AttentionDump golden = load_flashmla(letter);
    const OracleProblem& problem = golden.problem;
    std::vector<std::int32_t> visible, row_begin = {0}, lengths;
    const std::int64_t rows = problem.query.size(0);
    const auto requests = static_cast<std::int64_t>(golden.keys.size());
    for (const std::int64_t v : problem.visible) {
      visible.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(0, v)));
    }
    for (std::int64_t b = 1; b <= requests; ++b) {
      row_begin.push_back(static_cast<std::int32_t>(b * rows / requests));
      lengths.push_back(golden.file.tensor("seq_lens").as<std::int32_t>()[b - 1]);
    }
    const Tensor request = index_tensor(problem.request, "request");
    const Tensor visible_rows = index_tensor(visible, "visible");
    const Tensor begins = index_tensor(row_begin, "row_begin");
    const Tensor length_rows = index_tensor(lengths, "lengths");
    const std::int64_t heads = problem.query.size(1);
    CpuAttentionOps ops(2);
    const ScheduleShape shape{heads, rows / requests};
    const Tensor parts = host_tensor(DType::kI32, {ops.num_parts(shape), 8}, "parts");
    const Tensor splits = host_tensor(DType::kI32, {requests + 1}, "num_splits");
    ops.build_schedule({parts, splits}, length_rows, shape, kHostStream);
    const Tensor out = host_tensor(DType::kBF16, {rows, heads, kLatent}, "out");
    const Tensor lse = host_tensor(DType::kF32, {rows, heads}, "lse");
    ops.decode(out, lse, problem.query,
               {golden.file.tensor("kv_cache"), static_cast<float>(problem.key_scale)},
               {request, visible_rows, begins, length_rows, golden.file.tensor("block_table")},
               {parts, splits},
               {static_cast<float>(problem.softmax_scale), static_cast<float>(problem.query_scale)},
               {}, kHostStream);
    const ExpectedAttention expected = expect_decode(problem, profiles::kCpu, {}, 2).per_set[0];
    const Comparison of_out = compare(out, expected.out);
    const Comparison of_lse = compare(lse, expected.lse);
    EXPECT_TRUE(of_out.pass()) << of_out;
    EXPECT_TRUE(of_lse.pass()) << of_lse;
  }
}

// The Hugging Face golden: a causal prompt of 160 tokens, 8 heads.
struct HuggingFace {
  SafetensorsFile file =
      read_safetensors(test_data_path("golden/hf_deepseek_v3_h8_s160.safetensors"));

  double scale() const { return file.metadata_number("softmax_scale"); }
  TensorView kv_c() const { return file.tensor("kv_c").select(0, 0); }
  TensorView w_uv() const { return file.tensor("w_uv").transposed(1, 2); }  // [H, L, Vd]
};

Tensor rounded_to_bf16(const TensorView& view) {
  const std::vector<float> values = values_of(view);
  return filled(DType::kBF16, view.shape, view.name,
                [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

Tensor fp64_tensor(const Shape& shape, const std::vector<double>& values, const char* name) {
  Tensor tensor = host_tensor(DType::kF64, shape, name);
  std::copy(values.begin(), values.end(), tensor.as<double>());
  return tensor;
}

// [left | right] on the last of three axes, as fp64.
Tensor joined(const std::vector<double>& left, const std::vector<float>& right,
              const Shape& shape) {
  Tensor tensor = host_tensor(DType::kF64, shape, "joined");
  const std::int64_t width = shape[2], rows = shape[0] * shape[1];
  const std::int64_t left_width = static_cast<std::int64_t>(left.size()) / rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < width; ++d) {
      tensor.as<double>()[row * width + d] =
          d < left_width ? left[row * left_width + d]
                         : double{right[row * (width - left_width) + d - left_width]};
    }
  }
  return tensor;
}

// The exact reference reproduces the fp64 original: what is left is that the file keeps fp32.
TEST(HuggingFaceGolden, TheExactReferenceIsTheOriginal) {
  const HuggingFace hf;
  const std::int64_t rows = 160, heads = 8;
  const HeadProducts absorbed =
      multiply_heads_exactly(hf.file.tensor("q_nope"), hf.file.tensor("w_uk"), 2);
  const Tensor query =
      joined(absorbed.value, values_of(hf.file.tensor("q_pe")), {rows, heads, kRow});
  const std::vector<float> latents = values_of(hf.kv_c());
  const Tensor keys =
      joined({latents.begin(), latents.end()}, values_of(hf.file.tensor("k_pe")), {1, rows, kRow});
  OracleProblem problem;
  problem.query = query;
  problem.keys = {keys.view().select(0, 0)};
  problem.latent = kLatent;
  problem.softmax_scale = hf.scale();
  for (std::int64_t t = 0; t < rows; ++t) {
    problem.request.push_back(0);
    problem.visible.push_back(t + 1);
  }
  const ExpectedAttention latent = expect_decode(problem, profiles::kCpu, {}, 2).per_set[0];
  const Tensor latent_out = fp64_tensor(latent.out.shape, latent.out.value, "latent");
  const HeadProducts projected = multiply_heads_exactly(latent_out, hf.w_uv(), 2);
  // Inputs and outputs are kept in fp32: relative errors of 2^-24 in every product and in the
  // logits, whose roundings add up over the row's 576 products.
  Expected out{projected.shape, projected.value, projected.magnitude};
  for (double& bound : out.bound) bound *= 0x1p-24 * 4;
  Expected lse = latent.lse;
  for (std::size_t i = 0; i < lse.value.size(); ++i) {
    lse.bound[i] = 0x1p-24 * 4 * (1 + std::fabs(lse.value[i]));
  }
  const Comparison of_out = compare(hf.file.tensor("out"), out);
  const Comparison of_lse = compare(hf.file.tensor("lse"), lse);
  EXPECT_TRUE(of_out.pass()) << of_out;
  EXPECT_TRUE(of_lse.pass()) << of_lse;
}

struct DecodedPrompt {
  Tensor query;     // [T, heads, D], as attention saw it
  Tensor combined;  // [T, heads, L] bf16
  Tensor output;    // [T, heads, Vd] bf16
};

// The last `q_len` tokens as one decode step over N ranks, the others already in the cache.
DecodedPrompt decode_last_rows(const HuggingFace& hf, const ParallelConfig& config,
                               std::int64_t q_len) {
  const std::int64_t length = 160, heads = config.heads, h = config.local_heads();
  const KvSharding sharding = config.sharding();
  const Tensor kv_c = rounded_to_bf16(hf.kv_c());
  const Tensor k_pe = rounded_to_bf16(hf.file.tensor("k_pe"));
  const Tensor q_nope = rounded_to_bf16(hf.file.tensor("q_nope").narrow(0, length - q_len, q_len));
  const Tensor q_rope = rounded_to_bf16(hf.file.tensor("q_pe").narrow(0, length - q_len, q_len));
  const std::int64_t columns = table_columns(sharding, length, config.page_size);
  BlockTable table{columns, {}};
  for (std::int64_t c = 0; c < columns; ++c) {
    table.pages.push_back(static_cast<std::int32_t>(columns - 1 - c));
  }
  const bool quantised = config.quantized_query();
  DecodedPrompt result{
      host_tensor(quantised ? DType::kE4M3 : DType::kBF16, {q_len, heads, kRow}, "query"),
      host_tensor(DType::kBF16, {q_len, heads, kLatent}, "combined"),
      host_tensor(DType::kBF16, {q_len, heads, 128}, "output")};
  CpuOps ops(1);
  InProcessGroup group(static_cast<int>(config.dcp));
  group.run([&](Collective& collective) {
    const std::int64_t rank = collective.rank();
    const Tensor cache = host_tensor(config.kv_dtype, {columns, config.page_size, kRow}, "cache");
    poison(cache);
    std::vector<std::int64_t> slots;
    for (std::int64_t p = 0; p < length - q_len; ++p) {
      slots.push_back(slot_of(sharding, p, rank, config.page_size, table.pages));
    }
    const KvCache kv{cache, config.k_scale};
    ops.cache.write(kv, kv_c.view().narrow(0, 0, length - q_len),
                    k_pe.view().narrow(0, 0, length - q_len), index_tensor(slots, "slots"),
                    kHostStream);
    DecodeWorkspace workspace(host_device(), config, {}, ops.attention, {q_len, 1, columns, q_len});
    const StepRequest request{length, q_len};
    workspace.load(plan_decode(sharding, rank, config.page_size, {&request, 1}, table),
                   kHostStream);
    const auto of_rank = [&](int dim, const TensorView& view) {
      return view.narrow(dim, rank * h, h);
    };
    decode(config, static_cast<float>(hf.scale()),
           {of_rank(1, q_nope), of_rank(1, q_rope), kv_c.view().narrow(0, length - q_len, q_len),
            k_pe.view().narrow(0, length - q_len, q_len), of_rank(0, hf.file.tensor("w_uk")),
            of_rank(0, hf.w_uv()), kv},
           workspace, ops.ops(), collective, kHostStream);
    const TensorView query = of_rank(1, result.query);
    if (quantised) {
      host_device().copy_strided(query, workspace.local_query(), kHostStream);
    } else {
      ops.query.concat(query, workspace.absorbed(), of_rank(1, q_rope), kHostStream);
    }
    host_device().copy_strided(of_rank(1, result.combined),
                               config.dcp > 1 ? workspace.combined() : workspace.partial(),
                               kHostStream);
    host_device().copy_strided(of_rank(1, result.output), workspace.output(), kHostStream);
  });
  return result;
}

TEST(HuggingFaceGolden, DecodeOfItsLastRowsLiesWithinTheBoundOnAnyNumberOfRanks) {
  const HuggingFace hf;
  const std::int64_t q_len = 3, heads = 8;
  const Tensor kv_c = rounded_to_bf16(hf.kv_c());
  const Tensor k_pe = rounded_to_bf16(hf.file.tensor("k_pe"));
  for (const DType kv : {DType::kBF16, DType::kE4M3}) {
    for (const auto& [n, interleave, page] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 64}, {2, 1, 16}, {4, 16, 16}, {8, 4, 64}}) {
      SCOPED_TRACE(testing::Message() << name(kv) << " on " << n << " ranks, interleave "
                                      << interleave << ", page " << page);
      ParallelConfig config;
      config.heads = heads;
      config.tp = config.dcp = n;
      config.interleave = interleave;
      config.page_size = page;
      config.kv_dtype = kv;
      config.q_scale = 0.03F;
      config.k_scale = 0.01F;
      const DecodedPrompt decoded = decode_last_rows(hf, config, q_len);

      const Tensor keys = stored_rows(kv_c, k_pe, kv, config.k_scale);
      OracleProblem problem;
      problem.query = decoded.query;
      problem.keys = {keys};
      problem.latent = kLatent;
      problem.softmax_scale = static_cast<float>(hf.scale());
      problem.query_scale = config.quantized_query() ? config.q_scale : 1.0F;
      problem.key_scale = kv == DType::kE4M3 ? config.k_scale : 1.0F;
      problem.sets = n;
      problem.owner = {owners_by_counting(160, n, interleave)};
      for (std::int64_t j = 0; j < q_len; ++j) {
        problem.request.push_back(0);
        problem.visible.push_back(160 - q_len + j + 1);
      }
      const ExpectedDecode expected = expect_decode(problem, profiles::kCpu, {}, 2);
      const Comparison combined =
          compare(decoded.combined, n > 1 ? expected.combined.out : expected.per_set[0].out);
      EXPECT_TRUE(combined.pass()) << combined;
      EXPECT_GT(combined.worst_ratio, 0.05) << combined;
      const HeadProducts products = multiply_heads_exactly(decoded.combined, hf.w_uv(), 1);
      const Comparison output =
          compare(decoded.output, expect_products(products, DType::kBF16, profiles::kCpu.products));
      EXPECT_TRUE(output.pass()) << output;

      // And the original is as near as the formats allow: some eight roundings in a row, each
      // about half a unit on average.
      const std::vector<float> original =
          values_of(hf.file.tensor("out").narrow(0, 160 - q_len, q_len));
      Expected golden{decoded.output.shape(), {original.begin(), original.end()}, {}};
      golden.bound.assign(original.size(), std::numeric_limits<double>::infinity());
      const Comparison to_golden = compare(decoded.output, golden);
      EXPECT_LT(to_golden.relative_rms, 1.5 * unit_roundoff(kv)) << to_golden;
    }
  }
}

}  // namespace
}  // namespace mladcp
