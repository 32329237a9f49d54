// What one rank's step costs beside its attention: concat + quantise of its own heads, scheduler
// metadata, mask of empty rows, LSE correction; collectives and matrix products are left out.
// Timing: mean of 20 launches captured in one graph, median of 5 replays; the attention runs over
// rotating caches past the L2. Twice: each part in a graph of its own, and all in one graph with
// the order and the branches of a step (core/decode.cc), where beside_us is what they add to a
// graph of the attention alone. The shares are of the attention alone.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "bench/gpu_timing.h"
#include "core/side_stream.h"

namespace mladcp {
namespace {

constexpr std::int64_t kPage = 64;
constexpr int kLaunches = 20;

std::vector<std::int32_t> repeated(std::int64_t count, std::int64_t value) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(count),
                                   static_cast<std::int32_t>(value));
}

std::vector<std::int32_t> counted(std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// Arguments: requests, keys of a request on this rank, heads of a rank, ranks.
void rank_step(benchmark::State& state) {
  BenchDevice& bench = bench_device();
  CudaOps ops(bench.device());
  const std::int64_t requests = state.range(0);
  const std::int64_t keys = state.range(1);
  const std::int64_t own_heads = state.range(2);
  const std::int64_t ranks = state.range(3);
  const std::int64_t heads = own_heads * ranks;
  const std::int64_t pages = requests * keys / kPage;
  const std::int64_t sets = (std::int64_t{1} << 30) / (pages * kPage * 576) + 2;

  std::vector<Tensor> caches;
  for (std::int64_t i = 0; i < sets; ++i) {
    caches.push_back(bench.random(DType::kE4M3, {pages, kPage, 576}, "cache"));
  }
  std::vector<std::int32_t> order = counted(pages);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  const Tensor table = bench.indices(order, "block_table");
  const Tensor request = bench.indices(counted(requests), "request");
  const Tensor row_begin = bench.indices(counted(requests + 1), "row_begin");
  const Tensor lengths = bench.indices(repeated(requests, keys), "lengths");
  const DecodeRows rows = {
      request, lengths, row_begin, lengths, table.view().reshaped({requests, keys / kPage}), 1};
  const ScheduleShape shape = {heads, 1};
  const Tensor parts(bench.device(), DType::kI32, {ops.attention.num_parts(shape), 8}, "parts");
  const Tensor splits(bench.device(), DType::kI32, {requests + 1}, "num_splits");
  const ScheduleTensors schedule = {parts, splits};

  const Tensor latent = bench.random(DType::kBF16, {requests, own_heads, 512}, "latent");
  const Tensor rope = bench.random(DType::kBF16, {requests, own_heads, 64}, "rope");
  // Stored heads first where a step stores them so (core/decode_workspace.h).
  const Tensor own_storage(bench.device(), DType::kE4M3, {own_heads, requests, 576}, "query");
  const TensorView own_query = own_storage.view().transposed(0, 1);
  const Tensor gathered = bench.random(DType::kE4M3, {heads, requests, 576}, "gathered query");
  const TensorView query = gathered.view().transposed(0, 1);
  const Tensor out(bench.device(), DType::kBF16, {requests, heads, 512}, "out");
  const Tensor lse(bench.device(), DType::kF32, {requests, heads}, "lse");
  const Tensor lses = bench.random(DType::kF32, {ranks, requests, heads}, "lses");
  const Tensor corrected_storage(bench.device(), DType::kBF16, {heads, requests, 512}, "corrected");
  const TensorView corrected = corrected_storage.view().transposed(0, 1);
  const Tensor workspace(bench.device(), DType::kBytes,
                         {ops.attention.decode_workspace_bytes(requests, shape, 512)}, "workspace");

  const Stream stream = bench.stream();
  const SideStream side(bench.device());
  const auto concat = [&](int) {
    ops.query.concat_quantize(own_query, latent, rope, 0.37F, stream);
  };
  const auto build_schedule = [&](Stream on) {
    ops.attention.build_schedule(schedule, lengths, shape, on);
  };
  const auto attention = [&](int i) {
    ops.attention.decode(out, lse, query, {caches[static_cast<std::size_t>(i % sets)], 1.0F}, rows,
                         schedule, {0.0417F, 1.0F}, workspace, stream);
  };
  const auto mask = [&](int) { ops.combine.mask_empty(out, lse, lengths, stream); };
  const auto correction = [&](int) { ops.combine.correct(corrected, out, lses, 3, stream); };
  for (auto _ : state) {
    const double concat_s = bench.seconds(kLaunches, concat);
    const double metadata_s = bench.seconds(kLaunches, [&](int) { build_schedule(stream); });
    const double attention_s = bench.seconds(kLaunches, attention);
    const double mask_s = bench.seconds(kLaunches, mask);
    const double correction_s = bench.seconds(kLaunches, correction);
    const double step_s = bench.seconds(kLaunches, [&](int i) {
      side.mark(stream);
      concat(i);
      side.run_beside(stream, [&](Stream beside) { build_schedule(beside); });
      attention(i);
      mask(i);
      correction(i);
    });
    state.SetIterationTime(step_s);
    state.counters["attention_us"] = 1e6 * attention_s;
    state.counters["concat_us"] = 1e6 * concat_s;
    state.counters["metadata_us"] = 1e6 * metadata_s;
    state.counters["mask_us"] = 1e6 * mask_s;
    state.counters["correction_us"] = 1e6 * correction_s;
    state.counters["share_of_parts"] =
        (concat_s + metadata_s + mask_s + correction_s) / attention_s;
    state.counters["beside_us"] = 1e6 * (step_s - attention_s);
    state.counters["share_of_attention"] = (step_s - attention_s) / attention_s;
  }
}

BENCHMARK(rank_step)
    ->ArgNames({"B", "S", "heads", "ranks"})
    ->Args({64, 4096, 16, 8})
    ->Args({64, 512, 16, 8})
    ->Args({128, 4096, 16, 8})
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) { return mladcp::run_gpu_benchmarks(argc, argv); }
