// Decode attention on the host, beside plain Eigen products of the same size in the same run.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <chrono>

#include "reference/error_bounds.h"
#include "tests/reference/oracle_problem.h"

namespace mladcp {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

AttentionProblem problem_of(std::int64_t keys, std::int64_t heads, DType dtype) {
  AttentionProblemShape shape;
  shape.query_dtype = shape.cache_dtype = dtype;
  shape.heads = heads;
  shape.latent = 512;
  shape.rope = 64;
  shape.page = 64;
  shape.visible = {{static_cast<std::int32_t>(keys)}};
  shape.softmax_scale = 0.04F;
  return make_attention_problem(shape);
}

// Two products a key, rows of 576 and of 512.
double flop_of(std::int64_t keys, std::int64_t heads) {
  return 2.0 * static_cast<double>(keys * heads) * (576 + 512);
}

// args: keys, heads, dtype. One thread. `ratio`: of its speed to that of the two bare products,
// which take turns with it.
void BM_Decode(benchmark::State& state) {
  const std::int64_t keys = state.range(0), heads = state.range(1);
  const auto dtype = static_cast<DType>(state.range(2));
  const AttentionProblem problem = problem_of(keys, heads, dtype);
  const RowMatrix query = RowMatrix::Random(heads, 576), key = RowMatrix::Random(keys, 576);
  RowMatrix logits(heads, keys), out(heads, 512);
  double decode_s = 0.0, product_s = 0.0;
  for (auto _ : state) {
    const auto begin = Clock::now();
    const DecodeResult result = run_decode(problem);
    benchmark::DoNotOptimize(result.out.view().data);
    const double seconds = seconds_since(begin);
    state.SetIterationTime(seconds);
    decode_s += seconds;
    const auto product_begin = Clock::now();
    logits.noalias() = query * key.transpose();
    out.noalias() = logits * key.leftCols(512);
    benchmark::DoNotOptimize(out.data());
    product_s += seconds_since(product_begin);
  }
  const double flop = flop_of(keys, heads) * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = flop / decode_s * 1e-9;
  state.counters["Eigen GFLOP/s"] = flop / product_s * 1e-9;
  state.counters["ratio"] = product_s / decode_s;
  state.SetLabel(std::string(name(dtype)));
}
BENCHMARK(BM_Decode)
    ->ArgNames({"S", "H", "dtype"})
    ->ArgsProduct({{512, 8192},
                   {16, 128},
                   {static_cast<int>(DType::kBF16), static_cast<int>(DType::kE4M3)}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// args: keys, heads, sets. The FP64 oracle with all sums of its bounds, one thread.
void BM_Oracle(benchmark::State& state) {
  const std::int64_t keys = state.range(0), heads = state.range(1);
  const AttentionProblem decode = problem_of(keys, heads, DType::kE4M3);
  OracleProblem problem = oracle_problem(decode);
  problem.sets = state.range(2);
  problem.owner = {owners_by_counting(keys, problem.sets, 1)};
  for (auto _ : state) {
    const ExpectedDecode expected = expect_decode(problem, profiles::kSm90Fp8, {}, 1);
    benchmark::DoNotOptimize(expected.combined.out.value.data());
  }
  state.counters["keys*heads/s"] = benchmark::Counter(
      static_cast<double>(keys * heads), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Oracle)
    ->ArgNames({"S", "H", "N"})
    ->Args({8192, 128, 1})
    ->Args({8192, 128, 8})
    ->Args({131072, 16, 8})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
