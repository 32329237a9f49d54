// The LSE of a public FP8 decode kernel, predicted from the model of the tensor cores alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "harness/safetensors.h"
#include "reference/hopper_fp8.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

double natural_lse(std::span<const float> scores, double scale) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float score : scores) largest = std::max(largest, score * scale);
  double sum = 0;
  for (const float score : scores) sum += std::exp(score * scale - largest);
  return largest + std::log(sum);
}

// The rows of request `b` in order of position, [len, D].
std::vector<Float8E4M3> keys_of(const SafetensorsFile& golden, std::int64_t b) {
  const TensorView& cache = golden.tensor("kv_cache");
  const TensorView& table = golden.tensor("block_table");
  const std::int64_t page_size = cache.size(1);
  const std::int64_t width = cache.size(2);
  std::vector<Float8E4M3> keys;
  for (std::int64_t p = 0; p < golden.tensor("seq_lens").as<std::int32_t>()[b]; ++p) {
    const std::int64_t page = table.as<std::int32_t>()[b * table.size(1) + p / page_size];
    const auto* row = cache.as<Float8E4M3>() + (page * page_size + p % page_size) * width;
    keys.insert(keys.end(), row, row + width);
  }
  return keys;
}

class HopperModelOnFlashMla : public testing::TestWithParam<const char*> {};

TEST_P(HopperModelOnFlashMla, PredictsTheLseOfTheKernel) {
  const SafetensorsFile golden = read_safetensors(
      test_data_path(std::string("golden/flashmla_fp8_") + GetParam() + ".safetensors"));
  const TensorView& q = golden.tensor("q");  // [B, q_len, H, D]
  const std::int64_t q_len = q.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t width = q.size(3);
  const bool causal = golden.metadata_value("causal") == "True";
  const double scale = golden.metadata_number("softmax_scale") * golden.metadata_number("q_scale") *
                       golden.metadata_number("k_scale");
  int compared = 0;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const std::vector<Float8E4M3> keys = keys_of(golden, b);
    const auto length = static_cast<std::int64_t>(keys.size()) / width;
    for (std::int64_t j = 0; j < q_len; ++j) {
      const std::int64_t visible =
          causal ? std::max<std::int64_t>(0, length - q_len + j + 1) : length;
      const std::span<const Float8E4M3> rows(q.as<Float8E4M3>() + (b * q_len + j) * heads * width,
                                             static_cast<std::size_t>(heads * width));
      const auto visible_keys =
          std::span<const Float8E4M3>(keys).first(static_cast<std::size_t>(visible * width));
      std::vector<float> scores(static_cast<std::size_t>(heads * visible));
      hopper_product(scores, rows, visible_keys, width);
      for (std::int64_t h = 0; h < heads; ++h) {
        const float got = golden.tensor("lse").as<float>()[(b * q_len + j) * heads + h];
        if (visible == 0) {
          EXPECT_EQ(got, std::numeric_limits<float>::infinity());  // the kernel's mark for no key
          continue;
        }
        const auto row = std::span<const float>(scores).subspan(
            static_cast<std::size_t>(h * visible), static_cast<std::size_t>(visible));
        const double wanted = natural_lse(row, scale);
        // What fp32 exponentials, their sum and the logarithm may add to exact scores.
        EXPECT_LE(std::fabs(got - wanted), 2e-6 + 0x1p-22 * std::fabs(wanted))
            << "request " << b << ", row " << j << ", head " << h << ": " << got << ", wanted "
            << wanted;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Goldens, HopperModelOnFlashMla, testing::Values("a", "c", "e"),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace mladcp
