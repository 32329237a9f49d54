// Long contexts on the GPU, in one walk and in many splits: what loses small terms, flushes P, or
// hides behind zero-mean data (docs/numerics.md). Lengths up to 131,072 keys.
#include <iostream>
#include <map>
#include <string_view>
#include <vector>

#include "reference/parallel_for.h"
#include "tests/kernels/decode_case.h"

namespace mladcp {
namespace {

constexpr std::int32_t kLong = 131072;

struct Formats {
  DType query;
  DType cache;
};
constexpr Formats kFormats[] = {
    {DType::kBF16, DType::kBF16}, {DType::kE4M3, DType::kE4M3}, {DType::kBF16, DType::kE4M3}};

// A cheap symmetric spread with mean 0 and deviation 1: a sum of four uniform bytes of a hash.
float spread(std::int64_t k, std::int64_t d) {
  std::uint64_t x = static_cast<std::uint64_t>(k * 576 + d) * 0x9E3779B97F4A7C15ULL;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ULL;
  const auto sum =
      static_cast<float>((x >> 32 & 255) + (x >> 40 & 255) + (x >> 48 & 255) + (x >> 56));
  return (sum - 510.0F) / 147.8F;
}

// One request of `keys` keys in pages of 64, in order.
class LongDecodeTest : public DecodeGpuTest {
 protected:
  template <typename KeyValue>
  AttentionProblem long_problem(const Formats& formats, std::int32_t keys,
                                const KeyValue& key_value) {
    AttentionProblemShape shape = full_width(formats.query, formats.cache);
    shape.heads = 16;
    shape.page = 64;
    shape.k_scale = 1.0F;
    shape.q_scale = 1.0F;
    shape.visible = {{1}};
    AttentionProblem p = make_attention_problem(shape);
    p.shape.visible = {{keys}};
    const std::int64_t pages = (keys + 63) / 64;
    p.cache_storage = host_tensor(formats.cache, {pages, 64, 579}, "cache");
    poison(p.cache_storage);
    const TensorView rows = p.cache().data;
    p.keys.clear();
    p.keys.push_back(host_tensor(formats.cache, {keys, 576}, "keys"));
    const Tensor& dense = p.keys[0];
    parallel_for(
        16, keys,
        [&](std::int64_t k) {
          for (std::int64_t d = 0; d < 576; ++d) {
            const float value = key_value(k, d);
            if (formats.cache == DType::kE4M3) {
              dense.as<Float8E4M3>()[k * 576 + d] = Float8E4M3::from_float(value);
            } else {
              dense.as<BFloat16>()[k * 576 + d] = BFloat16::from_float(value);
            }
          }
          copy_row(rows, offset_of(rows, k / 64, k % 64), dense, offset_of(dense, k));
        },
        64);
    p.visible = index_tensor(std::vector<std::int32_t>{keys}, "visible");
    p.lengths = index_tensor(std::vector<std::int32_t>{keys}, "lengths");
    std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
    for (std::int64_t i = 0; i < pages; ++i)
      table[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    p.block_table =
        copied_to_host(index_tensor(table, "block_table").view().reshaped({1, pages}), kHostStream);
    return p;
  }

  // In one walk and in 132 splits, by the generic kernels and by the chosen ones: check(ops, out,
  // lse).
  template <typename Check>
  void for_each_walk(AttentionProblem& p, const Check& check) {
    CudaAttentionOps generic(device(), DecodeKernels::kGeneric);
    CudaAttentionOps best(device());
    p.parts = host_tensor(DType::kI32, {132, kPartFields}, "parts");
    build_schedule(p.schedule(), p.lengths, ScheduleDialect::kBlocks);
    DecodeOnGpu g = upload_problem(p, generic);
    for (const std::int64_t parts : {1, 132}) {
      p.parts = host_tensor(DType::kI32, {parts, kPartFields}, "parts");
      build_schedule(p.schedule(), p.lengths, ScheduleDialect::kBlocks);
      g.parts = upload(p.parts);
      g.num_splits = upload(p.num_splits);
      for (CudaAttentionOps* ops : {&generic, &best}) {
        SCOPED_TRACE(std::string(name(p.shape.query_dtype)) + " over " +
                     std::string(name(p.shape.cache_dtype)) + ", " + std::to_string(parts) +
                     " parts, " + (ops == &generic ? "generic" : "best"));
        const Result result = run(p, g, *ops);
        check(*ops, download(result.out), download(result.lse));
      }
    }
  }

  void expect_walks(AttentionProblem& p, std::int64_t head_step) {
    std::map<std::string_view, ExpectedAttention> expected;
    for_each_walk(p, [&](const CudaAttentionOps& ops, const Tensor& out, const Tensor& lse) {
      const NumericsProfile& profile = profile_of(p, ops);
      if (!expected.contains(profile.name))
        expected[profile.name] = expected_attention(p, profile, head_step);
      const double used = expect_within_bounds(out, lse, expected[profile.name], head_step);
      std::cout << profile.name << ": " << used << " of a bound\n";
    });
  }
};

// All latents 0.5, all logits equal: exactly 0.5, whatever the length and the cuts.
TEST_F(LongDecodeTest, ConstantLatentsAreExact) {
  for (const Formats& formats : kFormats) {
    AttentionProblem p = long_problem(
        formats, kLong, [](std::int64_t, std::int64_t d) { return d < 512 ? 0.5F : 0.25F; });
    for_each_walk(p, [](const CudaAttentionOps&, const Tensor& out, const Tensor&) {
      for (const float value : values_of(out)) ASSERT_EQ(value, 0.5F);
    });
  }
}

// Latents with a mean of two deviations, random logits.
TEST_F(LongDecodeTest, ShiftedLatents) {
  for (const Formats& formats : kFormats) {
    AttentionProblem p = long_problem(formats, kLong, [](std::int64_t k, std::int64_t d) {
      return (d < 512 ? 2.0F : 0.0F) + spread(k, d);
    });
    expect_walks(p, 15);
  }
}

// One key whose logit is 10 above the crowd's: P of the crowd must not be flushed.
TEST_F(LongDecodeTest, SinkDoesNotFlushTheCrowd) {
  for (const Formats& formats : kFormats) {
    for (const std::int32_t crowd : {1024, 8192, 65536}) {
      // The query is 1 in channel 575 alone; the sink's logit comes from there.
      AttentionProblem p = long_problem(formats, crowd + 1, [](std::int64_t k, std::int64_t d) {
        if (d < 512) return 1.0F + 0.25F * spread(k, d);
        return k == 7 && d == 575 ? 240.0F : 0.0F;
      });
      for (std::int64_t i = 0; i < p.query.view().elements(); ++i) {
        const float value = i % 576 == 575 ? 1.0F : 0.0F;
        if (formats.query == DType::kE4M3) {
          p.query.as<Float8E4M3>()[i] = Float8E4M3::from_float(value);
        } else {
          p.query.as<BFloat16>()[i] = BFloat16::from_float(value);
        }
      }
      SCOPED_TRACE("crowd " + std::to_string(crowd));
      expect_walks(p, 16);
    }
  }
}

}  // namespace
}  // namespace mladcp
