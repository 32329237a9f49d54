// In-process collectives: a large all-gather against memcpy in the same run, and the collectives of
// a decode step by batch size. Times are of rank 0 from the first to the last of kRepeats calls.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/decode_step_calls.h"
#include "collectives/in_process_group.h"

namespace mladcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Stream kHostStream{};
constexpr int kRepeats = 10;
constexpr std::int64_t kHeads = 64;

void report_bandwidth(benchmark::State& state, const CollectiveCall& call, int world_size) {
  constexpr auto kRate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["algbw"] = benchmark::Counter(static_cast<double>(algorithm_bytes(call)), kRate,
                                               benchmark::Counter::OneK::kIs1000);
  state.counters["busbw"] = benchmark::Counter(static_cast<double>(wire_bytes(call, world_size)),
                                               kRate, benchmark::Counter::OneK::kIs1000);
}

// One benchmark iteration is kRepeats calls on all ranks, after one that warms up.
void time_call(benchmark::State& state, const CollectiveCall& call, int world_size) {
  InProcessGroup group(world_size);
  for (auto _ : state) {
    double seconds = 0.0;
    group.run([&](Collective& collective) {
      const Tensor in(host_device(), call.dtype, call.in_shape, "in");
      const Tensor out(host_device(), call.dtype, call.out_shape, "out");
      host_device().fill_bytes(in.view().data, 0, static_cast<std::size_t>(in.view().bytes()),
                               kHostStream);
      make_call(collective, call, out, in, kHostStream);
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < kRepeats; ++i) make_call(collective, call, out, in, kHostStream);
      if (collective.rank() == 0) {
        seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      }
    });
    state.SetIterationTime(seconds / kRepeats);
  }
  report_bandwidth(state, call, world_size);
}

// args: ranks, bytes of one rank's input. All ranks together write N * N times as much; "written"
// is comparable with that of BM_Memcpy.
void BM_AllGather(benchmark::State& state) {
  const auto world_size = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  const CollectiveCall call = {
      CollectiveOp::kAllGather, 0, DType::kBytes, {bytes}, {bytes * world_size}, "context", 0};
  time_call(state, call, world_size);
  state.counters["written"] = benchmark::Counter(
      static_cast<double>(bytes) * world_size * world_size,
      benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::OneK::kIs1000);
}
BENCHMARK(BM_AllGather)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {1 << 12, 1 << 18, 1 << 24}})
    ->Args({2, 1 << 26})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// args: threads, bytes of one copy; every thread copies kRepeats times.
void BM_Memcpy(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<char>> sources(static_cast<std::size_t>(threads),
                                         std::vector<char>(bytes, 1));
  std::vector<std::vector<char>> destinations = sources;
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    {
      std::vector<std::jthread> running;
      running.reserve(static_cast<std::size_t>(threads));
      for (int t = 0; t < threads; ++t) {
        running.emplace_back([&, t] {
          for (int i = 0; i < kRepeats; ++i) {
            std::memcpy(destinations[t].data(), sources[t].data(), bytes);
            benchmark::ClobberMemory();
          }
        });
      }
    }
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count() / kRepeats);
  }
  state.counters["written"] = benchmark::Counter(static_cast<double>(bytes) * threads,
                                                 benchmark::Counter::kIsIterationInvariantRate,
                                                 benchmark::Counter::OneK::kIs1000);
}
BENCHMARK(BM_Memcpy)
    ->ArgNames({"threads", "bytes"})
    ->ArgsProduct({{1, 2}, {1 << 24, 1 << 27}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

void register_decode_step() {
  for (const std::int64_t requests : {1, 16, 64, 128}) {
    for (const StepCall& step : decode_step_calls(requests, kHeads, 2)) {
      const std::string label =
          std::string("DecodeStep/") + step.label + "/B:" + std::to_string(requests);
      benchmark::RegisterBenchmark(
          label.c_str(), [call = step.call](benchmark::State& state) { time_call(state, call, 2); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) {
  mladcp::register_decode_step();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
