// Speed of the operations that move rows, as a share of a device copy of the same run. Every call
// touches about a gigabyte, far past the L2. Timing: mean of 4 launches captured in one graph,
// median of 5 replays.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "bench/gpu_timing.h"

namespace mladcp {
namespace {

constexpr std::int64_t kLatent = 512;
constexpr std::int64_t kRope = 64;
constexpr std::int64_t kWidth = kLatent + kRope;
constexpr std::int64_t kRows = std::int64_t{1} << 19;
constexpr std::int64_t kPage = 64;
constexpr int kLaunches = 4;

CudaOps& ops() {
  static CudaOps& instance = *new CudaOps(bench_device().device());
  return instance;
}

// bytes: read once plus written once.
void report(benchmark::State& state, double bytes, const std::function<void(int)>& launch) {
  BenchDevice& bench = bench_device();
  const double copy = bench.copy_bytes_per_second();
  double seconds = 0.0;
  for (auto _ : state) {
    seconds = bench.seconds(kLaunches, launch);
    state.SetIterationTime(seconds);
  }
  state.counters["bytes_per_second"] = benchmark::Counter(
      bytes, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  state.counters["share_of_copy"] = bytes / seconds / copy;
  state.SetLabel("graph of 4 launches, copy " + std::to_string(static_cast<int>(copy * 1e-9)) +
                 " GB/s");
}

template <typename Integer>
std::vector<Integer> shuffled(std::int64_t count) {
  std::vector<Integer> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), Integer{0});
  std::shuffle(values.begin(), values.end(), std::mt19937_64(7));
  return values;
}

void concat_rows(benchmark::State& state, DType dtype) {
  BenchDevice& bench = bench_device();
  const std::int64_t heads = 128;
  const Tensor latent = bench.random(DType::kBF16, {kRows / heads, heads, kLatent}, "latent");
  const Tensor rope = bench.random(DType::kBF16, {kRows / heads, heads, kRope}, "rope");
  const Tensor out(bench.device(), dtype, {kRows / heads, heads, kWidth}, "query");
  const double bytes =
      static_cast<double>(kRows * kWidth) * (2.0 + static_cast<double>(size_bytes(dtype)));
  report(state, bytes, [&](int) {
    if (dtype == DType::kE4M3) {
      ops().query.concat_quantize(out, latent, rope, 0.37F, bench.stream());
    } else {
      ops().query.concat(out, latent, rope, bench.stream());
    }
  });
}
void concat(benchmark::State& state) { concat_rows(state, DType::kBF16); }
void concat_quantize(benchmark::State& state) { concat_rows(state, DType::kE4M3); }

void write_cache(benchmark::State& state, DType dtype) {
  BenchDevice& bench = bench_device();
  const Tensor kv_c = bench.random(DType::kBF16, {kRows, kLatent}, "kv_c");
  const Tensor k_pe = bench.random(DType::kBF16, {kRows, kRope}, "k_pe");
  const Tensor slots = bench.indices(shuffled<std::int64_t>(kRows), "slots");
  const Tensor cache(bench.device(), dtype, {kRows / kPage, kPage, kWidth}, "cache");
  const double bytes =
      static_cast<double>(kRows * kWidth) * (2.0 + static_cast<double>(size_bytes(dtype)));
  report(state, bytes, [&](int) {
    ops().cache.write({cache, 0.37F}, kv_c, k_pe, slots, bench.stream());
  });
}
void cache_write_bf16(benchmark::State& state) { write_cache(state, DType::kBF16); }
void cache_write_e4m3(benchmark::State& state) { write_cache(state, DType::kE4M3); }

void gather(benchmark::State& state, DType dtype) {
  BenchDevice& bench = bench_device();
  const std::int64_t requests = 64;
  const std::int64_t per_request = kRows / requests;
  const Tensor cache = bench.random(dtype, {kRows / kPage, kPage, kWidth}, "cache");
  const Tensor pages = bench.indices(shuffled<std::int32_t>(kRows / kPage), "block_table");
  std::vector<std::int32_t> cu, token_to_seq;
  for (std::int64_t s = 0; s <= requests; ++s)
    cu.push_back(static_cast<std::int32_t>(s * per_request));
  for (std::int64_t t = 0; t < kRows; ++t)
    token_to_seq.push_back(static_cast<std::int32_t>(t / per_request));
  const Tensor cu_tensor = bench.indices(cu, "cu_seq_lens");
  const Tensor seq_tensor = bench.indices(token_to_seq, "token_to_seq");
  const Tensor starts = bench.indices(std::vector<std::int32_t>(requests, 0), "seq_starts");
  const Tensor out(bench.device(), DType::kBF16, {kRows, kWidth}, "rows");
  const TensorView table = pages.view().reshaped({requests, per_request / kPage});
  const double bytes =
      static_cast<double>(kRows * kWidth) * (2.0 + static_cast<double>(size_bytes(dtype)));
  report(state, bytes, [&](int) {
    ops().cache.gather_and_dequantize(out, {cache, 0.37F}, table,
                                      {cu_tensor, seq_tensor, starts, {}}, bench.stream());
  });
}
void gather_bf16(benchmark::State& state) { gather(state, DType::kBF16); }
void gather_dequantize_e4m3(benchmark::State& state) { gather(state, DType::kE4M3); }

// Four ranks' shares behind each other, requests of 1,000 rows, a few rows of padding dropped.
void reorganise(benchmark::State& state) {
  BenchDevice& bench = bench_device();
  const std::int64_t ranks = 4, share = kRows / ranks, length = 250;
  std::vector<std::int32_t> source;
  for (std::int64_t begin = 0; begin + length <= share; begin += length) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t i = 0; i < length - (rank == 0 ? 0 : 1); ++i) {
        source.push_back(static_cast<std::int32_t>(rank * share + begin + i));
      }
    }
  }
  const auto rows = static_cast<std::int64_t>(source.size());
  const Tensor gathered = bench.random(DType::kBF16, {kRows, kWidth}, "gathered");
  const Tensor source_rows = bench.indices(source, "source_rows");
  const Tensor out(bench.device(), DType::kBF16, {rows, kWidth}, "rows");
  report(state, static_cast<double>(rows * kWidth) * 4.0,
         [&](int) { ops().cache.reorganise(out, gathered, source_rows, bench.stream()); });
}

struct Partials {
  static constexpr std::int64_t kRanks = 8, kHeads = 128;
  Tensor partial =
      bench_device().random(DType::kBF16, {kRows / kHeads, kHeads, kLatent}, "partial");
  Tensor lses = bench_device().random(DType::kF32, {kRanks, kRows / kHeads, kHeads}, "lses");
};

void lse_correct(benchmark::State& state) {
  const Partials p;
  const Tensor out(bench_device().device(), DType::kBF16, p.partial.shape(), "corrected");
  report(state,
         static_cast<double>(kRows * kLatent) * 4.0 + static_cast<double>(p.lses.view().bytes()),
         [&](int) { ops().combine.correct(out, p.partial, p.lses, 3, bench_device().stream()); });
}

void merge(benchmark::State& state) {
  const Partials p;
  const std::int64_t n = Partials::kRanks, heads = Partials::kHeads / n,
                     rows = kRows / Partials::kHeads;
  const TensorView partials = p.partial.view().reshaped({n, rows, heads, kLatent});
  const TensorView lses = p.lses.view().reshaped({n, n * rows, heads}).narrow(1, 0, rows);
  const Tensor out(bench_device().device(), DType::kBF16, {rows, heads, kLatent}, "out");
  const Tensor lse(bench_device().device(), DType::kF32, {rows, heads}, "lse");
  report(state, static_cast<double>(kRows * kLatent) * 2.0 * (1.0 + 1.0 / static_cast<double>(n)),
         [&](int) { ops().combine.merge(out, lse, partials, lses, bench_device().stream()); });
}

void pack(benchmark::State& state) {
  const Partials p;
  const std::int64_t n = Partials::kRanks, heads = Partials::kHeads / n,
                     rows = kRows / Partials::kHeads;
  const Tensor packed(bench_device().device(), DType::kBF16, {n, rows, heads, kLatent + 2},
                      "packed");
  const TensorView lse = p.lses.view().select(0, 0);
  report(state, static_cast<double>(kRows * (kLatent + 1)) * 4.0,
         [&](int) { ops().combine.pack(packed, p.partial, lse, bench_device().stream()); });
}

// [T, N * H, X] seen as [N, T, H, X], made dense: what an exchange by rank moves.
void axis_move(benchmark::State& state) {
  const Partials p;
  const TensorView by_rank = p.partial.view().split(1, Partials::kRanks).transposed(0, 1);
  const Tensor out(bench_device().device(), DType::kBF16, by_rank.shape, "out");
  report(state, static_cast<double>(kRows * kLatent) * 4.0,
         [&](int) { bench_device().device().copy_strided(out, by_rank, bench_device().stream()); });
}

void rank_sum(benchmark::State& state) {
  const Partials p;
  std::vector<TensorView> inputs;
  const std::int64_t rows = kRows / Partials::kHeads / Partials::kRanks;
  for (std::int64_t r = 0; r < Partials::kRanks; ++r)
    inputs.push_back(p.partial.view().narrow(0, r * rows, rows));
  const Tensor out(bench_device().device(), DType::kBF16, inputs[0].shape, "sum");
  report(state, static_cast<double>(kRows * kLatent) * 2.0 * (1.0 + 1.0 / Partials::kRanks),
         [&](int) {
           bench_device().device().sum_in_rank_order(out, inputs, bench_device().stream());
         });
}

void device_copy(benchmark::State& state) {
  const double rate = bench_device().copy_bytes_per_second();
  for (auto _ : state) state.SetIterationTime(2.0 * (1 << 30) / rate);
  state.counters["bytes_per_second"] =
      benchmark::Counter(rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1000);
}

#define MLADCP_MOVER(function) \
  BENCHMARK(function)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond)
MLADCP_MOVER(device_copy);
MLADCP_MOVER(gather_dequantize_e4m3);
MLADCP_MOVER(gather_bf16);
MLADCP_MOVER(reorganise);
MLADCP_MOVER(concat_quantize);
MLADCP_MOVER(concat);
MLADCP_MOVER(lse_correct);
MLADCP_MOVER(cache_write_e4m3);
MLADCP_MOVER(cache_write_bf16);
MLADCP_MOVER(merge);
MLADCP_MOVER(pack);
MLADCP_MOVER(axis_move);
MLADCP_MOVER(rank_sum);

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) { return mladcp::run_gpu_benchmarks(argc, argv); }
