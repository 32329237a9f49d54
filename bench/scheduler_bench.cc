// Host time of the tile scheduler and of its judge, per request.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/scheduler.h"
#include "reference/schedule_laws.h"

namespace mladcp {
namespace {

std::vector<std::int32_t> ragged_lengths(std::int64_t batch) {
  std::mt19937 random(7);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch));
  for (std::int32_t& length : lengths) {
    length = static_cast<std::int32_t>(random() % (1U << (random() % 16)) + 1);
  }
  return lengths;
}

void per_request(benchmark::State& state) {
  state.counters["s_per_request"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void schedule(benchmark::State& state) {
  const std::vector<std::int32_t> lengths = ragged_lengths(state.range(0));
  const auto dialect = static_cast<ScheduleDialect>(state.range(2));
  std::vector<std::int32_t> parts(static_cast<std::size_t>(state.range(1) * kPartFields));
  std::vector<std::int32_t> num_splits(lengths.size() + 1);
  for ([[maybe_unused]] auto _ : state) {
    build_schedule(parts, num_splits, lengths, dialect);
    benchmark::DoNotOptimize(parts.data());
    benchmark::ClobberMemory();
  }
  per_request(state);
}

void judge(benchmark::State& state) {
  const std::vector<std::int32_t> lengths = ragged_lengths(state.range(0));
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(state.range(1) * kPartFields));
  std::vector<std::int32_t> num_splits(lengths.size() + 1);
  build_schedule(numbers, num_splits, lengths, ScheduleDialect::kTokens);
  std::vector<SchedulePart> parts;
  for (std::int64_t p = 0; p < state.range(1); ++p) parts.push_back(read_part(numbers, p));
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        judge_schedule({ScheduleDialect::kTokens, lengths, parts, num_splits, 64, 5}));
  }
  per_request(state);
}

BENCHMARK(schedule)
    ->ArgNames({"B", "parts", "dialect"})
    ->ArgsProduct({{1, 128, 4096, 16384}, {66, 132}, {0, 1}});
BENCHMARK(judge)->ArgNames({"B", "parts"})->ArgsProduct({{128, 4096}, {66}});

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
