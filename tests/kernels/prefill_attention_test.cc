// Prefill attention on the GPU against the host: causal and unmasked, ragged requests, strided
// rows, poison beyond them.
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/lse_merge.h"
#include "reference/cpu_ops.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {
namespace {

class PrefillAttentionTest : public GpuTest {
 protected:
  CpuOps cpu_{16};
};

struct Ragged {
  std::vector<std::int32_t> rows;  // new rows of each request
  std::vector<std::int32_t> keys;  // context rows of each request; empty: causal
};

Tensor cumulative(const std::vector<std::int32_t>& counts, const char* name) {
  std::vector<std::int32_t> sums = {0};
  for (const std::int32_t count : counts) sums.push_back(sums.back() + count);
  return index_tensor(sums, name);
}

// P in bf16 (2^-8, unbiased: four deviations of at most |v| <= v_max, worst case up to 16 keys),
// fp32 accumulators on the GPU, fp32 arithmetic on the host; logits up to `logit` in magnitude.
void expect_close(const TensorView& got, const TensorView& wanted, const TensorView& got_lse,
                  const TensorView& wanted_lse, double v_max, double logit) {
  const std::vector<float> a = values_of(got), b = values_of(wanted);
  const std::vector<float> la = values_of(got_lse), lb = values_of(wanted_lse);
  const double bound = v_max * (0x1p-8 + 0x1p-21 * (logit + 64));
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_LE(std::abs(double{a[i]} - b[i]), bound)
        << "element " << i << " got " << a[i] << ", wanted " << b[i];
  }
  for (std::size_t i = 0; i < la.size(); ++i) {
    if (lb[i] == kEmptyLse) {
      ASSERT_EQ(la[i], kEmptyLse) << i;
    } else {
      ASSERT_LE(std::abs(double{la[i]} - lb[i]), 0x1p-21 * (logit + 64)) << i;
    }
  }
}

TEST_F(PrefillAttentionTest, MatchesTheHost) {
  CudaOps& ops = ops_of_rank(0);
  const std::vector<Ragged> cases = {{{1}, {}},
                                     {{63, 64, 65, 0, 1, 130}, {}},
                                     {{5, 1, 70}, {0, 200, 64}},
                                     {{129, 3}, {63, 1000}},
                                     {{17}, {1}}};
  std::uint64_t seed = 1;
  for (const Ragged& c : cases) {
    for (const std::int64_t heads : {1, 3, 16}) {
      for (const std::int64_t pad : {0, 8}) {
        const bool causal = c.keys.empty();
        const auto rows =
            static_cast<std::int64_t>(std::accumulate(c.rows.begin(), c.rows.end(), 0));
        const std::vector<std::int32_t>& key_counts = causal ? c.rows : c.keys;
        const auto keys =
            static_cast<std::int64_t>(std::accumulate(key_counts.begin(), key_counts.end(), 0));
        SCOPED_TRACE(std::string(causal ? "causal " : "context ") + std::to_string(rows) +
                     " rows " + std::to_string(keys) + " keys " + std::to_string(heads) + " heads");
        Numbers numbers(++seed);
        const Tensor query =
            random_tensor(DType::kBF16, {rows, heads, 192}, "query", numbers, 0.1F);
        const Tensor key = random_tensor(DType::kBF16, {keys, heads, 192}, "key", numbers, 0.1F);
        const Tensor value =
            random_tensor(DType::kBF16, {keys, heads, 128}, "value", numbers, 1.0F);
        const Tensor cu_rows = cumulative(c.rows, "cu_rows");
        const Tensor cu_keys = cumulative(key_counts, "cu_context");
        const std::int64_t max_rows = *std::max_element(c.rows.begin(), c.rows.end());
        const Tensor wanted = host_tensor(DType::kF32, {rows, heads, 128}, "out");
        const Tensor wanted_lse = host_tensor(DType::kF32, {rows, heads}, "lse");
        const Tensor got = poisoned(DType::kF32, {rows, heads, 128}, "out");
        const Tensor got_lse = poisoned(DType::kF32, {rows, heads}, "lse");
        Tensor storage[3];
        const TensorView q = strided(query, storage[0], pad);
        const TensorView k = strided(key, storage[1], pad);
        const TensorView v = strided(value, storage[2], pad);
        const Tensor cu_rows_device = upload(cu_rows);
        const Tensor cu_keys_device = upload(cu_keys);
        const float scale = 0.0721688F;
        if (causal) {
          cpu_.attention.causal(wanted, wanted_lse, query, key, value, cu_rows, max_rows, scale,
                                kHostStream);
          ops.attention.causal(got, got_lse, q, k, v, cu_rows_device, max_rows, scale, stream());
        } else {
          cpu_.attention.context(wanted, wanted_lse, query, key, value, cu_rows, max_rows, cu_keys,
                                 scale, kHostStream);
          ops.attention.context(got, got_lse, q, k, v, cu_rows_device, max_rows, cu_keys_device,
                                scale, stream());
        }
        expect_close(download(got), wanted, download(got_lse), wanted_lse, 6.0, 12.0);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(PrefillAttentionTest, RefusesOtherWidths) {
  CudaOps& ops = ops_of_rank(0);
  const Tensor query(device(), DType::kBF16, {3, 2, 160}, "query");
  const Tensor value(device(), DType::kBF16, {3, 2, 128}, "value");
  const Tensor out(device(), DType::kF32, {3, 2, 128}, "out");
  const Tensor lse(device(), DType::kF32, {3, 2}, "lse");
  const Tensor cu(device(), DType::kI32, {2}, "cu_rows");
  EXPECT_THROW(ops.attention.causal(out, lse, query, query, value, cu, 3, 1.0F, stream()),
               Unsupported);
}

}  // namespace
}  // namespace mladcp
