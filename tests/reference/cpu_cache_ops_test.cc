#include "reference/cpu_cache_ops.h"

#include <gtest/gtest.h>

#include "core/conversions.h"
#include "core/error.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

constexpr std::int64_t kPages = 3, kPage = 4, kLatent = 10, kRope = 3, kRow = kLatent + kRope;

struct NewTokens {
  Tensor kv_c, k_pe;
};

NewTokens new_tokens(std::int64_t count) {
  Numbers numbers(5);
  return {random_tensor(DType::kBF16, {count, kLatent}, "kv_c", numbers, 1.0F, 2.0F),
          random_tensor(DType::kBF16, {count, kRope}, "k_pe", numbers, -1.0F, 2.0F)};
}

TEST(CpuCacheWrite, StoresRowsAtTheirSlotsAndNothingElse) {
  const std::vector<std::int64_t> slots = {5, -1, 0, 11, -1};
  const NewTokens tokens = new_tokens(5);
  const auto latents = values_of(tokens.kv_c), ropes = values_of(tokens.k_pe);
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    for (const float scale : {1.0F, 3.0F, 0.1F}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " scale " << scale);
      const Tensor wide = host_tensor(dtype, {kPages, kPage, kRow + 5}, "cache");
      poison(wide);
      const std::vector<unsigned char> before = bytes_of(wide);
      const KvCache cache{wide.view().narrow(2, 2, kRow), scale};
      CpuCacheOps(1).write(cache, tokens.kv_c, tokens.k_pe, index_tensor(slots, "slots"),
                           kHostStream);
      const Tensor expected = host_tensor(dtype, {kPages, kPage, kRow + 5}, "expected");
      std::copy(before.begin(), before.end(), expected.as<unsigned char>());
      for (std::size_t t = 0; t < slots.size(); ++t) {
        for (std::int64_t d = 0; d < kRow && slots[t] >= 0; ++d) {
          const float x = d < kLatent ? latents[t * kLatent + d] : ropes[t * kRope + d - kLatent];
          const std::int64_t at = slots[t] * (kRow + 5) + 2 + d;
          if (dtype == DType::kE4M3) {
            expected.as<Float8E4M3>()[at] = Float8E4M3::from_float(x / scale);
          } else {
            expected.as<BFloat16>()[at] = BFloat16::from_float(x);
          }
        }
      }
      EXPECT_EQ(bytes_of(wide), bytes_of(expected));
    }
  }
}

// A scale chosen for the latents alone clips a RoPE part of 1: it reads back as 448 * scale.
TEST(CpuCacheWrite, SaturatesARopePartBeyondTheScale) {
  const float scale = 0.08F / 448.0F;
  const Tensor kv_c = filled(DType::kBF16, {1, kLatent}, "kv_c", [](auto) { return 0.08F; });
  const Tensor k_pe = filled(DType::kBF16, {1, kRope}, "k_pe", [](auto) { return 1.0F; });
  const Tensor data = host_tensor(DType::kE4M3, {kPages, kPage, kRow}, "cache");
  poison(data);
  CpuCacheOps(1).write({data, scale}, kv_c, k_pe, index_tensor<std::int64_t>({2}, "slots"),
                       kHostStream);
  const auto rope_code = data.as<Float8E4M3>()[2 * kRow + kLatent];
  EXPECT_EQ(rope_code.bits, 0x7E);
  EXPECT_EQ(rope_code.to_float() * scale, 0.08F);
  EXPECT_EQ(count_saturated(values_of(k_pe), scale), kRope);

  std::vector<float> both = values_of(kv_c);
  for (const float x : values_of(k_pe)) both.push_back(x);
  EXPECT_EQ(count_saturated(both, calibrated_scale(both)), 0);
}

TEST(CpuCacheWrite, RefusesASlotBeyondTheCacheBeforeWriting) {
  const NewTokens tokens = new_tokens(2);
  const Tensor data = host_tensor(DType::kE4M3, {kPages, kPage, kRow}, "cache");
  poison(data);
  const auto before = bytes_of(data);
  EXPECT_THROW(
      CpuCacheOps(1).write({data, 1.0F}, tokens.kv_c, tokens.k_pe,
                           index_tensor<std::int64_t>({0, kPages * kPage}, "slots"), kHostStream),
      InvalidArgument);
  EXPECT_EQ(bytes_of(data), before);
}

}  // namespace
}  // namespace mladcp
