// Decode of paged MLA by the dispatching kernels and by the generic ones: the shapes of the field,
// and what a schedule for gathered heads gives against one for local heads. Timing: mean of 20
// launches (decode and combine) captured in one graph over rotating cache sets past the L2, median
// of 5 replays. FLOP = 2 rows keys (576 + 512); bytes = the cache read once + query + output.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_timing.h"

namespace mladcp {
namespace {

constexpr std::int64_t kPage = 64;
constexpr int kLaunches = 20;

struct Case {
  DecodeKernels kernels;
  DType query, cache;
  std::int64_t requests, length, heads, q_len;
  std::int64_t scheduled_heads;  // what the schedule is built for
};

std::string label(const Case& c) {
  return std::string(c.kernels == DecodeKernels::kBest ? "best" : "generic") + "/" +
         std::string(name(c.query)) + "_" + std::string(name(c.cache)) + "/B" +
         std::to_string(c.requests) + "/S" + std::to_string(c.length) + "/H" +
         std::to_string(c.heads) + "/Q" + std::to_string(c.q_len) + "/schedule_for_" +
         std::to_string(c.scheduled_heads);
}

void decode(benchmark::State& state, const Case& c) {
  BenchDevice& bench = bench_device();
  CudaAttentionOps ops(bench.device(), c.kernels);
  const std::int64_t columns = (c.length + kPage - 1) / kPage;
  const std::int64_t pages = c.requests * columns;
  const std::int64_t rows = c.requests * c.q_len;
  const auto set_bytes = pages * kPage * 576 * static_cast<std::int64_t>(size_bytes(c.cache));
  const std::int64_t sets = std::clamp<std::int64_t>((std::int64_t{1} << 30) / set_bytes + 1, 2, 8);
  std::vector<Tensor> caches;
  for (std::int64_t i = 0; i < sets; ++i)
    caches.push_back(bench.random(c.cache, {pages, kPage, 576}, "cache"));
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages)), request, visible,
      row_begin = {0};
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  for (std::int64_t t = 0; t < rows; ++t) {
    request.push_back(static_cast<std::int32_t>(t / c.q_len));
    visible.push_back(static_cast<std::int32_t>(c.length - c.q_len + 1 + t % c.q_len));
  }
  for (std::int64_t b = 1; b <= c.requests; ++b)
    row_begin.push_back(static_cast<std::int32_t>(b * c.q_len));
  const Tensor block_table = bench.indices(table, "block_table");
  const Tensor request_tensor = bench.indices(request, "request");
  const Tensor visible_tensor = bench.indices(visible, "visible");
  const Tensor row_begin_tensor = bench.indices(row_begin, "row_begin");
  const Tensor lengths =
      bench.indices(std::vector<std::int32_t>(static_cast<std::size_t>(c.requests),
                                              static_cast<std::int32_t>(c.length)),
                    "lengths");
  const DecodeRows plan = {request_tensor,
                           visible_tensor,
                           row_begin_tensor,
                           lengths,
                           block_table.view().reshaped({c.requests, columns}),
                           c.q_len};
  const ScheduleShape shape = {c.scheduled_heads, c.q_len};
  const Tensor parts(bench.device(), DType::kI32, {ops.num_parts(shape), 8}, "parts");
  const Tensor num_splits(bench.device(), DType::kI32, {c.requests + 1}, "num_splits");
  ops.build_schedule({parts, num_splits}, lengths, shape, bench.stream());
  const Tensor query = bench.random(c.query, {rows, c.heads, 576}, "query");
  const Tensor out(bench.device(), DType::kBF16, {rows, c.heads, 512}, "out");
  const Tensor lse(bench.device(), DType::kF32, {rows, c.heads}, "lse");
  const std::int64_t scratch = (c.requests + parts.shape()[0]) * c.q_len * c.heads * 513 * 4 + 1024;
  const Tensor workspace(bench.device(), DType::kBytes, {scratch}, "workspace");
  double seconds = 0.0;
  for (auto _ : state) {
    seconds = bench.seconds(kLaunches, [&](int i) {
      ops.decode(out, lse, query.view(), {caches[static_cast<std::size_t>(i % sets)], 1.0F}, plan,
                 {parts, num_splits}, {0.0417F, 1.0F}, workspace, bench.stream());
    });
    state.SetIterationTime(seconds);
  }
  const double flop = 2.0 * static_cast<double>(rows * c.heads * c.length) * (576 + 512);
  const double bytes = static_cast<double>(set_bytes + query.view().bytes() + out.view().bytes());
  const auto rate = [&](double value) {
    return benchmark::Counter(value, benchmark::Counter::kIsIterationInvariantRate,
                              benchmark::Counter::kIs1000);
  };
  state.counters["flop_per_second"] = rate(flop);
  state.counters["bytes_per_second"] = rate(bytes);
  state.counters["share_of_copy"] = bytes / seconds / bench.copy_bytes_per_second();
}

void register_cases() {
  struct Shape4 {
    std::int64_t requests, length, heads, q_len;
  };
  const std::vector<Shape4> shapes = {
      {1, 65536, 16, 1},  {64, 4096, 16, 1},    {128, 16384, 16, 1},
      {64, 4096, 64, 1},  {128, 16384, 64, 1},  {1, 65536, 128, 1},
      {64, 4096, 128, 1}, {128, 16384, 128, 1}, {128, 4096, 128, 2}};
  std::vector<Case> cases;
  for (const auto& [query, cache] :
       {std::pair{DType::kE4M3, DType::kE4M3}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kE4M3}}) {
    for (const Shape4& s : shapes) {
      cases.push_back(
          {DecodeKernels::kGeneric, query, cache, s.requests, s.length, s.heads, s.q_len, s.heads});
    }
    // 16 heads a rank, 8 ranks: the kernel sees 128 heads; the schedule is for them, or for the
    // local 16.
    for (const DecodeKernels kernels : {DecodeKernels::kGeneric, DecodeKernels::kBest}) {
      for (const std::int64_t requests : {4, 16, 64, 128}) {
        for (const std::int64_t scheduled : {128, 16}) {
          cases.push_back({kernels, query, cache, requests, 4096, 128, 1, scheduled});
        }
      }
    }
  }
  for (const Case& c : cases) {
    benchmark::RegisterBenchmark(label(c).c_str(),
                                 [c](benchmark::State& state) { decode(state, c); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) {
  mladcp::register_cases();
  return mladcp::run_gpu_benchmarks(argc, argv);
}
