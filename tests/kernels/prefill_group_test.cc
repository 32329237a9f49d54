// Chunked prefill of a whole group on one card, judged by the FP64 oracle.
#include <vector>

#include "tests/kernels/prefill_case.h"

namespace mladcp {
namespace {

class PrefillGroupTest : public GpuTest {
 protected:
  std::vector<PrefillResult> run_on_gpu(const PrefillWorld& world) {
    const auto n = static_cast<std::size_t>(world.shape().sharding.world_size);
    for (std::size_t rank = 0; rank < n; ++rank) ops_of_rank(rank);  // the pool grows on one thread
    std::vector<PrefillResult> results(n);
    InProcessGroup group(static_cast<int>(n), {}, device());
    group.run([&](Collective& collective) {
      const auto rank = static_cast<std::size_t>(collective.rank());
      const Stream rank_stream = device().create_stream();
      results[rank] =
          run_rank_on_card(world, collective, device(), ops_of_rank(rank).ops(), rank_stream);
      device().destroy_stream(rank_stream);
    });
    return results;
  }

  static void expect_oracle_on_gpu(const PrefillWorld& world,
                                   const std::vector<PrefillResult>& results) {
    const std::int64_t h = world.shape().local_heads;
    const std::vector<std::int64_t> rows = rows_up_to(world.rows());
    for (std::size_t r = 0; r < results.size(); ++r) {
      SCOPED_TRACE("rank " + std::to_string(r));
      PrefillFormats formats;
      formats.p_unit = 0x1p-8;      // bf16
      formats.fp32_unit = 0x1p-23;  // tensor cores truncate
      formats.chunks = results[r].chunks;
      const auto first = static_cast<std::int64_t>(r) * h;
      const ExpectedPrefill rounded = expect_prefill(world.problem(), first, h, rows, formats, 16);
      formats.out_unit = 0.0;
      const ExpectedPrefill fp32 = expect_prefill(world.problem(), first, h, rows, formats, 16);
      expect_within("output", results[r].output, rounded.out);
      expect_within("running", results[r].running, fp32.out);
      expect_within("lse", results[r].lse, fp32.lse);
    }
  }
};

TEST_F(PrefillGroupTest, OneSoftmaxOverContextAndNewTokens) {
  struct Case {
    std::int64_t ranks, interleave, workspace;
    DType kv;
  };
  for (const Case& c : {Case{1, 1, 128, DType::kE4M3}, Case{2, 1, 128, DType::kE4M3},
                        Case{3, 4, 192, DType::kBF16}, Case{8, 1, 256, DType::kE4M3}}) {
    PrefillShape shape;
    shape.dims = MlaDims{};
    shape.local_heads = 2;
    shape.sharding = {c.ranks, c.interleave};
    shape.workspace_rows = c.workspace;
    shape.kv_dtype = c.kv;
    shape.softmax_scale = 0.0721688F;
    shape.requests = {{200, 17}, {0, 5}, {65, 1}, {90, 70}};
    shape.seed = static_cast<std::uint64_t>(c.ranks);
    SCOPED_TRACE(std::to_string(c.ranks) + " ranks");
    const PrefillWorld world(shape);
    expect_oracle_on_gpu(world, run_on_gpu(world));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace mladcp
