// Chunked prefill on the host: the planner, the context gather against memcpy in the same run, and
// whole steps, all ranks together.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "collectives/in_process_group.h"
#include "core/prefill.h"
#include "reference/cpu_ops.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr Stream kHostStream{};
constexpr MlaDims kDims;

Tensor zeros(DType dtype, const Shape& shape, const char* name) {
  Tensor tensor(host_device(), dtype, shape, name);
  host_device().fill_bytes(tensor.view().data, 0, static_cast<std::size_t>(tensor.view().bytes()),
                           kHostStream);
  return tensor;
}

// args: ranks, interleave. 256 requests, 2^20 tokens of context in uneven lengths.
void BM_Plan(benchmark::State& state) {
  std::vector<std::int64_t> contexts;
  for (std::int64_t b = 0; b < 256; ++b) contexts.push_back(16 + b * 8160 / 255);
  contexts[0] += (1 << 20) - std::accumulate(contexts.begin(), contexts.end(), std::int64_t{0});
  const ChunkGeometry geometry{{state.range(0), state.range(1)}, 64, 65'536};
  for (auto _ : state) benchmark::DoNotOptimize(build_chunk_plan(contexts, geometry));
  state.counters["chunks"] =
      static_cast<double>(build_chunk_plan(contexts, geometry).chunks.size());
}
BENCHMARK(BM_Plan)
    ->ArgNames({"N", "I"})
    ->Args({1, 1})
    ->Args({8, 1})
    ->Args({8, 64})
    ->Unit(benchmark::kMicrosecond);

constexpr std::int64_t kGatherRows = 32'768;

void report_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);  // written
}

void BM_Memcpy(benchmark::State& state) {
  const std::int64_t bytes = kGatherRows * kDims.row() * 2;
  const Tensor from = zeros(DType::kBytes, {bytes}, "from");
  const Tensor to = zeros(DType::kBytes, {bytes}, "to");
  for (auto _ : state) {
    std::memcpy(to.as<char>(), from.as<char>(), static_cast<std::size_t>(bytes));
    benchmark::ClobberMemory();
  }
  report_bytes(state, bytes);
}
BENCHMARK(BM_Memcpy)->Unit(benchmark::kMicrosecond);

// One thread, 4 requests, pages in an order that is not theirs. Bytes are those written, in bf16.
void BM_Gather(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  constexpr std::int64_t kPage = 64;
  constexpr std::int64_t kColumns = kGatherRows / 4 / kPage;
  const std::vector<std::int64_t> contexts(4, kGatherRows / 4);
  const ChunkPlan plan = build_chunk_plan(contexts, {{1, 1}, kPage, kGatherRows});
  const ContextChunk& chunk = plan.chunks[0];
  const auto upload = [](const std::vector<std::int32_t>& values, const char* name) {
    Tensor tensor(host_device(), DType::kI32, {static_cast<std::int64_t>(values.size())}, name);
    std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
    return tensor;
  };
  const Tensor cu = upload(chunk.padded_local_cu_seq_lens, "cu_seq_lens");
  const Tensor token_to_seq = upload(chunk.padded_local_token_to_seq, "token_to_seq");
  const Tensor starts = upload(chunk.seq_starts, "seq_starts");
  const Tensor source_rows = upload(chunk.source_rows, "source_rows");
  std::vector<std::int32_t> pages;
  for (std::int64_t i = 0; i < 4 * kColumns; ++i) {
    pages.push_back(static_cast<std::int32_t>(i * 77 % (4 * kColumns)));
  }
  const Tensor table = upload(pages, "block_table");
  const Tensor cache = zeros(dtype, {4 * kColumns, kPage, kDims.row()}, "cache");
  const Tensor out = zeros(DType::kBF16, {kGatherRows, kDims.row()}, "out");
  CpuCacheOps ops(1);
  for (auto _ : state) {
    ops.gather_and_dequantize(out, {cache, 0.1F}, table.view().reshaped({4, kColumns}),
                              {cu, token_to_seq, starts, source_rows}, kHostStream);
  }
  report_bytes(state, out.view().bytes());
  state.SetLabel(std::string(name(dtype)));
}
BENCHMARK(BM_Gather)
    ->ArgName("dtype")
    ->Arg(static_cast<int>(DType::kBF16))
    ->Arg(static_cast<int>(DType::kE4M3))
    ->Unit(benchmark::kMicrosecond);

// args: ranks, context, new tokens. DeepSeek-V3 widths, 2 heads a rank, FP8 cache, one request; all
// ranks on this machine's cores.
void BM_Prefill(benchmark::State& state) {
  ParallelConfig config;
  config.tp = config.dcp = state.range(0);
  config.heads = 2 * config.dcp;
  config.k_scale = 0.1F;
  const PrefillRequest request{state.range(1), state.range(2)};
  const ChunkGeometry geometry{config.sharding(), config.page_size, 1024};
  const std::int64_t columns =
      table_columns(config.sharding(), request.context + request.new_tokens, config.page_size);
  BlockTable table{columns, std::vector<std::int32_t>(static_cast<std::size_t>(columns))};
  std::iota(table.pages.begin(), table.pages.end(), 0);
  const std::int64_t t = request.new_tokens;
  const std::int64_t h = config.local_heads();
  const Tensor query = zeros(DType::kBF16, {t, h, kDims.nope + kDims.rope}, "query");
  const Tensor kv_c = zeros(DType::kBF16, {t, kDims.latent}, "kv_c");
  const Tensor k_pe = zeros(DType::kBF16, {t, kDims.rope}, "k_pe");
  const Tensor w_uk = zeros(DType::kBF16, {h, kDims.nope, kDims.latent}, "w_uk");
  const Tensor w_uv = zeros(DType::kBF16, {h, kDims.latent, kDims.value}, "w_uv");
  InProcessGroup group(static_cast<int>(config.dcp));
  std::vector<Tensor> caches;
  std::vector<PrefillWorkspace> workspaces;
  for (std::int64_t r = 0; r < config.dcp; ++r) {
    caches.push_back(zeros(DType::kE4M3, {columns, config.page_size, kDims.row()}, "cache"));
    workspaces.emplace_back(host_device(), config, kDims,
                            PrefillLimits{t, geometry.workspace_rows});
    workspaces.back().load(plan_prefill(geometry, {r, columns}, std::vector{request}, table),
                           kHostStream);
  }
  CpuOps ops(threads_per_rank(static_cast<int>(config.dcp)));
  for (auto _ : state) {
    group.run([&](Collective& collective) {
      const auto r = static_cast<std::size_t>(collective.rank());
      prefill(config, 0.1F, {query, kv_c, k_pe, w_uk, w_uv, {caches[r], config.k_scale}},
              workspaces[r], ops.ops(), collective, kHostStream);
    });
  }
  state.counters["chunks"] = static_cast<double>(workspaces[0].chunks());
  state.SetItemsProcessed(state.iterations() * t);  // new tokens
}
BENCHMARK(BM_Prefill)
    ->ArgNames({"N", "context", "new"})
    ->Args({1, 4096, 128})
    ->Args({2, 4096, 128})
    ->Args({4, 4096, 128})
    ->Args({2, 0, 512})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
