// The bit-exact model of the tensor cores, in dot products of 576 pairs (one query head, one key).
#include <benchmark/benchmark.h>

#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "reference/hopper_fp8.h"

namespace mladcp {
namespace {

constexpr std::int64_t kDepth = 576;

template <typename Operand>
std::vector<Operand> normal_rows(std::int64_t rows) {
  std::vector<Operand> values(static_cast<std::size_t>(rows * kDepth));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (Operand& x : values) x = Operand::from_float(normal(random));
  return values;
}

void count_dots(benchmark::State& state, std::int64_t dots) {
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * dots);
}

// args: heads, keys. The scores of one query row.
void BM_Product(benchmark::State& state) {
  const auto heads = normal_rows<Float8E4M3>(state.range(0));
  const auto keys = normal_rows<Float8E4M3>(state.range(1));
  std::vector<float> scores(static_cast<std::size_t>(state.range(0) * state.range(1)));
  for (auto _ : state) {
    hopper_product(scores, heads, keys, kDepth);
    benchmark::DoNotOptimize(scores.data());
  }
  count_dots(state, state.range(0) * state.range(1));
}
BENCHMARK(BM_Product)
    ->ArgNames({"heads", "keys"})
    ->Args({1, 64})
    ->Args({16, 1024})
    ->Args({128, 1024});

template <typename Operand>
void BM_Dot(benchmark::State& state) {
  const auto a = normal_rows<Operand>(1);
  const auto b = normal_rows<Operand>(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        hopper_dot(std::span<const Operand>(a), std::span<const Operand>(b), 0));
  }
  count_dots(state, 1);
}
BENCHMARK(BM_Dot<Float8E4M3>);
BENCHMARK(BM_Dot<BFloat16>);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
