// Projection and attention of chunked prefill on the host, each alone.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/lse_merge.h"
#include "reference/cpu_attention_ops.h"
#include "reference/cpu_query_ops.h"
#include "tests/reference/prefill_problem.h"

namespace mladcp {
namespace {

constexpr std::int64_t kHeads = 3, kWidth = 24, kRope = 5;

// w[h] = identity: keys and values are the latents themselves, so no rounding lies between.
Tensor identities() {
  return filled(DType::kBF16, {kHeads, kWidth, kWidth}, "identities",
                [](std::int64_t i) { return i / kWidth % kWidth == i % kWidth ? 1.0F : 0.0F; });
}

struct AttentionCase {
  std::vector<PrefillRequest> requests;

  std::vector<std::int32_t> cu(std::int64_t PrefillRequest::*field) const {
    std::vector<std::int32_t> sums = {0};
    for (const PrefillRequest& request : requests) {
      sums.push_back(sums.back() + static_cast<std::int32_t>(request.*field));
    }
    return sums;
  }
};

struct AttentionOutput {
  Tensor out, lse;
};

AttentionOutput outputs(std::int64_t rows) {
  AttentionOutput result{host_tensor(DType::kF32, {rows, kHeads, kWidth}, "out"),
                         host_tensor(DType::kF32, {rows, kHeads}, "lse")};
  poison(result.out);
  poison(result.lse);
  return result;
}

void expect_equal_to_oracle(const AttentionOutput& got, const PrefillProblem& problem) {
  PrefillFormats formats;
  formats.projection_unit = formats.out_unit = 0.0;
  const std::vector<std::int64_t> rows = rows_up_to(got.lse.shape()[0]);
  const ExpectedPrefill expected = expect_prefill(problem, 0, kHeads, rows, formats, 1);
  expect_within("out", got.out, expected.out);
  expect_within("lse", got.lse, expected.lse);
}

TEST(ProjectKeysValues, KeepsLatentsUnderIdentityAndSharesTheRope) {
  Numbers numbers(7);
  const Tensor rows = random_tensor(DType::kBF16, {300, kWidth + kRope}, "rows", numbers);
  Tensor storage;
  const TensorView strided = strided_copy(rows, storage);
  const Tensor key = host_tensor(DType::kBF16, {300, kHeads, kWidth + kRope}, "key");
  const Tensor value = host_tensor(DType::kBF16, {300, kHeads, kWidth}, "value");
  CpuQueryOps(2).project_keys_values(key, value, strided, identities(), identities(), kHostStream);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(bytes_of(key.view().select(1, h)), bytes_of(rows));
    EXPECT_EQ(bytes_of(value.view().select(1, h)), bytes_of(rows.view().narrow(1, 0, kWidth)));
  }
}

TEST(ProjectKeysValues, IsTheUpProjectionOfEveryHead) {
  Numbers numbers(8);
  const std::int64_t count = 261, latent = 70, nope = 11, width = 13;
  const Tensor rows = random_tensor(DType::kBF16, {count, latent + kRope}, "rows", numbers);
  const Tensor w_uk = random_tensor(DType::kBF16, {kHeads, nope, latent}, "w_uk", numbers, 0.1F);
  const Tensor w_uv = random_tensor(DType::kBF16, {kHeads, latent, width}, "w_uv", numbers, 0.1F);
  const Tensor key = host_tensor(DType::kBF16, {count, kHeads, nope + kRope}, "key");
  const Tensor value = host_tensor(DType::kBF16, {count, kHeads, width}, "value");
  CpuQueryOps(1).project_keys_values(key, value, rows, w_uk, w_uv, kHostStream);
  const auto c = values_of(rows), uk = values_of(w_uk), uv = values_of(w_uv);
  const auto k = values_of(key), v = values_of(value);
  // Half a bf16 step of the result, and fp32 sums: latent roundings at most.
  const auto expect_product = [&](float got, double product, double magnitude) {
    const double bound = 0x1p-8 * std::abs(product) + 0x1p-24 * (latent + 1) * magnitude;
    ASSERT_LE(std::abs(got - product), bound);
  };
  for (std::int64_t m = 0; m < count; ++m) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t x = 0; x < nope + width; ++x) {
        double product = 0.0;
        double magnitude = 0.0;
        for (std::int64_t l = 0; l < latent; ++l) {
          const double w =
              x < nope ? uk[(h * nope + x) * latent + l] : uv[(h * latent + l) * width + x - nope];
          product += c[m * (latent + kRope) + l] * w;
          magnitude += std::abs(c[m * (latent + kRope) + l] * w);
        }
        expect_product(x < nope ? k[(m * kHeads + h) * (nope + kRope) + x]
                                : v[(m * kHeads + h) * width + x - nope],
                       product, magnitude);
      }
    }
  }
}

TEST(CausalAttention, RowsSeeThemselvesAndTheRowsBefore) {
  const AttentionCase c{{{0, 1}, {0, 0}, {0, 130}, {0, 64}, {0, 7}}};
  Numbers numbers(9);
  const std::int64_t rows = c.cu(&PrefillRequest::new_tokens).back();
  const Tensor query =
      random_tensor(DType::kBF16, {rows, kHeads, kWidth + kRope}, "query", numbers);
  const Tensor tokens = random_tensor(DType::kBF16, {rows, kWidth + kRope}, "rows", numbers, 1.0F);
  const Tensor none = host_tensor(DType::kBF16, {0, kWidth + kRope}, "context");
  const Tensor weights = identities();
  const Tensor key = host_tensor(DType::kBF16, {rows, kHeads, kWidth + kRope}, "key");
  const Tensor value = host_tensor(DType::kBF16, {rows, kHeads, kWidth}, "value");
  CpuQueryOps(1).project_keys_values(key, value, tokens, weights, weights, kHostStream);
  const AttentionOutput got = outputs(rows);
  Tensor storage;
  CpuAttentionOps(2).causal(got.out, got.lse, strided_copy(query, storage), key, value,
                            index_tensor(c.cu(&PrefillRequest::new_tokens), "cu_rows"), 130, 0.2F,
                            kHostStream);
  expect_equal_to_oracle(got, {c.requests, 0.2F, query, none, tokens, weights, weights});
}

TEST(ContextAttention, EveryRowSeesAllRowsOfItsRequestAndNoOther) {
  Numbers numbers(10);
  const std::vector<std::int32_t> cu_rows = {0, 3, 3, 70, 71, 75};
  const std::vector<std::int32_t> cu_context = {0, 300, 317, 318, 318, 446};
  const Tensor query = random_tensor(DType::kBF16, {75, kHeads, kWidth + kRope}, "query", numbers);
  const Tensor tokens = random_tensor(DType::kBF16, {446, kWidth + kRope}, "rows", numbers, 1.0F);
  const Tensor weights = identities();
  const Tensor key = host_tensor(DType::kBF16, {446, kHeads, kWidth + kRope}, "key");
  const Tensor value = host_tensor(DType::kBF16, {446, kHeads, kWidth}, "value");
  CpuQueryOps(1).project_keys_values(key, value, tokens, weights, weights, kHostStream);
  const AttentionOutput got = outputs(75);
  CpuAttentionOps(2).context(got.out, got.lse, query, key, value, index_tensor(cu_rows, "cu_rows"),
                             67, index_tensor(cu_context, "cu_context"), 0.2F, kHostStream);
  PrefillFormats formats;
  formats.projection_unit = formats.out_unit = 0.0;
  std::vector<PrefillRequest> requests;
  std::vector<KeyRange> context;
  for (std::size_t b = 0; b + 1 < cu_rows.size(); ++b) {
    requests.push_back({cu_context[b + 1] - cu_context[b], cu_rows[b + 1] - cu_rows[b]});
    context.push_back({0, requests.back().context});
  }
  const Tensor unseen =
      filled(DType::kBF16, {75, kWidth + kRope}, "new rows", [](auto) { return 9.0F; });
  const PrefillProblem problem{requests, 0.2F, query, tokens, unseen, weights, weights};
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const ExpectedPrefill expected =
        expect_prefill(PrefillHead(problem, head, rows_up_to(75)).attend(context), formats);
    expect_within("out", got.out.view().select(1, head), expected.out);
    expect_within("lse", got.lse.view().select(1, head), expected.lse);
  }
  // The request without context rows.
  EXPECT_EQ(values_of(got.out.view().select(0, 70)), std::vector<float>(kHeads * kWidth, 0.0F));
  EXPECT_EQ(values_of(got.lse.view().select(0, 70)), std::vector<float>(kHeads, kEmptyLse));
}

// A dominant key far from the first block, and logits too large for exp without a running maximum.
TEST(ContextAttention, LargeLogitsNeitherOverflowNorHideTheRest) {
  const Tensor query = filled(DType::kBF16, {1, kHeads, kWidth + kRope}, "query",
                              [](auto i) { return i % (kWidth + kRope) == 0 ? 1.0F : 0.0F; });
  const Tensor tokens = filled(DType::kBF16, {400, kWidth + kRope}, "rows", [](std::int64_t i) {
    const std::int64_t row = i / (kWidth + kRope);
    if (i % (kWidth + kRope) > 0) return static_cast<float>(row % 7);
    return row == 399 ? 1000.0F : row % 2 == 0 ? -1000.0F : 992.0F;
  });
  const Tensor weights = identities();
  const Tensor key = host_tensor(DType::kBF16, {400, kHeads, kWidth + kRope}, "key");
  const Tensor value = host_tensor(DType::kBF16, {400, kHeads, kWidth}, "value");
  CpuQueryOps(1).project_keys_values(key, value, tokens, weights, weights, kHostStream);
  const AttentionOutput got = outputs(1);
  CpuAttentionOps(1).context(got.out, got.lse, query, key, value,
                             index_tensor<std::int32_t>({0, 1}, "cu_rows"), 1,
                             index_tensor<std::int32_t>({0, 400}, "cu_context"), 1.0F, kHostStream);
  const std::vector<PrefillRequest> request = {{399, 1}};
  expect_equal_to_oracle(got, {request, 1.0F, query, tokens.view().narrow(0, 0, 399),
                               tokens.view().narrow(0, 399, 1), weights, weights});
}

TEST(PrefillAttention, RefusesRowsThatDoNotBelongTogether) {
  Numbers numbers(11);
  const Tensor query = random_tensor(DType::kBF16, {5, kHeads, kWidth + kRope}, "query", numbers);
  const Tensor key = random_tensor(DType::kBF16, {9, kHeads, kWidth + kRope}, "key", numbers);
  const Tensor value = random_tensor(DType::kBF16, {9, kHeads, kWidth}, "value", numbers);
  const AttentionOutput got = outputs(5);
  const auto context = [&](const std::vector<std::int32_t>& cu_rows,
                           const std::vector<std::int32_t>& cu_context) {
    CpuAttentionOps(1).context(got.out, got.lse, query, key, value,
                               index_tensor(cu_rows, "cu_rows"), 5,
                               index_tensor(cu_context, "cu_context"), 1.0F, kHostStream);
  };
  EXPECT_NO_THROW(context({0, 2, 5}, {0, 9, 9}));
  EXPECT_THROW(context({0, 2, 4}, {0, 9, 9}), InvalidArgument);
  EXPECT_THROW(context({0, 2, 5}, {0, 9, 10}), InvalidArgument);
  EXPECT_THROW(context({0, 6, 5}, {0, 9, 9}), InvalidArgument);
  EXPECT_THROW(context({1, 2, 5}, {0, 9, 9}), InvalidArgument);
  EXPECT_THROW(context({0, 5}, {0, 9, 9}), InvalidArgument);
  EXPECT_THROW(CpuAttentionOps(1).causal(got.out, got.lse, query, key, value,
                                         index_tensor<std::int32_t>({0, 5}, "cu_rows"), 5, 1.0F,
                                         kHostStream),
               InvalidArgument);
}

}  // namespace
}  // namespace mladcp
