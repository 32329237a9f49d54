// The slot law: nanoseconds per token, and a whole decode plan.
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "core/decode_plan.h"
#include "core/kv_sharding.h"

namespace mladcp {
namespace {

constexpr std::int64_t kPage = 64;

BlockTable table_of(std::int64_t requests, std::int64_t columns) {
  BlockTable table{columns,
                   std::vector<std::int32_t>(static_cast<std::size_t>(requests * columns))};
  std::iota(table.pages.begin(), table.pages.end(), 0);
  return table;
}

// args: ranks, interleave. Every position of a long prompt on one rank.
void BM_SlotOf(benchmark::State& state) {
  const KvSharding sharding{state.range(0), state.range(1)};
  constexpr std::int64_t kTokens = 65536;
  const BlockTable table = table_of(1, table_columns(sharding, kTokens, kPage));
  std::vector<std::int64_t> slots(kTokens);
  for (auto _ : state) {
    for (std::int64_t p = 0; p < kTokens; ++p) {
      slots[p] = slot_of(sharding, p, sharding.world_size - 1, kPage, table.pages);
    }
    benchmark::DoNotOptimize(slots.data());
    benchmark::ClobberMemory();
  }
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(kTokens),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_SlotOf)->ArgNames({"ranks", "interleave"})->ArgsProduct({{1, 2, 8}, {1, 16, 64}});

// args: requests. Eight ranks, 4,096 positions each, one new token.
void BM_PlanDecode(benchmark::State& state) {
  const KvSharding sharding{8, 1};
  const std::vector<StepRequest> requests(static_cast<std::size_t>(state.range(0)), {4096, 1});
  const BlockTable table = table_of(state.range(0), table_columns(sharding, 4096, kPage));
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_decode(sharding, 7, kPage, requests, table));
  }
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_PlanDecode)->ArgName("requests")->Arg(1)->Arg(128)->Arg(512);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
