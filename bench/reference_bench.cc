// The small operations of a decode step on the host, one thread: bytes they write per second.
#include <benchmark/benchmark.h>

#include "reference/cpu_ops.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

constexpr std::int64_t kHeads = 128, kLatent = 512, kRope = 64;

void report_written(benchmark::State& state, const TensorView& out) {
  state.SetBytesProcessed(state.iterations() * out.bytes());
}

// arg: rows.
void BM_ConcatQuantize(benchmark::State& state) {
  Numbers numbers(1);
  const std::int64_t rows = state.range(0);
  const Tensor latent = random_tensor(DType::kBF16, {rows, kHeads, kLatent}, "latent", numbers);
  const Tensor rope = random_tensor(DType::kBF16, {rows, kHeads, kRope}, "rope", numbers);
  const Tensor out = host_tensor(DType::kE4M3, {rows, kHeads, kLatent + kRope}, "query");
  CpuQueryOps ops(1);
  for (auto _ : state) ops.concat_quantize(out, latent, rope, 0.1F, kHostStream);
  report_written(state, out);
}
BENCHMARK(BM_ConcatQuantize)->ArgName("T")->Arg(8)->Arg(64)->Unit(benchmark::kMicrosecond);

void BM_Absorb(benchmark::State& state) {
  Numbers numbers(1);
  const std::int64_t rows = state.range(0), heads = 16, nope = 128;
  const Tensor query = random_tensor(DType::kBF16, {rows, heads, nope}, "q_nope", numbers);
  const Tensor weight = random_tensor(DType::kBF16, {heads, nope, kLatent}, "w_uk", numbers);
  const Tensor out = host_tensor(DType::kBF16, {rows, heads, kLatent}, "absorbed");
  CpuQueryOps ops(1);
  for (auto _ : state) ops.absorb(out, query, weight, kHostStream);
  report_written(state, out);
}
BENCHMARK(BM_Absorb)->ArgName("T")->Arg(8)->Arg(64)->Unit(benchmark::kMicrosecond);

// arg: ranks. 8 rows, 16 heads a rank.
void BM_Merge(benchmark::State& state) {
  Numbers numbers(1);
  const std::int64_t world = state.range(0), rows = 8, heads = 16;
  const Tensor partials =
      random_tensor(DType::kBF16, {world, rows, heads, kLatent}, "partials", numbers);
  const Tensor lses = random_tensor(DType::kF32, {world, rows, heads}, "lses", numbers);
  const Tensor out = host_tensor(DType::kBF16, {rows, heads, kLatent}, "merged");
  const Tensor lse = host_tensor(DType::kF32, {rows, heads}, "lse");
  CpuCombineOps ops(1);
  for (auto _ : state) ops.merge(out, lse, partials, lses, kHostStream);
  report_written(state, out);
}
BENCHMARK(BM_Merge)->ArgName("N")->Arg(2)->Arg(8)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
