// A whole decode step on the cards of one host: DCP over all of them in every combine, against one
// card with all heads and the whole cache, and against TP without DCP (a share of the heads, the
// whole cache on every card). Timing: the mean of some steps captured in one CUDA graph a card, on
// caches in rotation past the L2, the slowest card, the median of 5 replays. The split into
// attention, schedule, collectives and correction comes from a graph of one step with event nodes
// round each call, on rank 0; a collective's time holds the wait for slower ranks, and the schedule
// has a branch of its own beside the others.
//
// MLADCP_BENCH_SECONDS (55): cases that would start later are skipped, most telling ones first.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "bench/gpu_timing.h"
#include "collectives/fake_collective.h"
#include "collectives/forwarding_collective.h"
#include "collectives/nccl_group.h"
#include "core/decode.h"
#include "harness/forwarding_ops.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kReplays = 5;
constexpr float kSoftmaxScale = 1e-4F;  // logits of these values spread like those of a model
constexpr double kGraphSeconds = 0.03;  // of steps in one graph
constexpr std::int64_t kRotation = std::int64_t{256} << 20;
constexpr std::int64_t kMostCacheBytes = std::int64_t{110} << 30;

struct Case {
  std::string name;
  int ranks = 1;
  std::int64_t heads = 128;  // of all ranks
  Combine combine = Combine::kAllGatherReduceScatter;
  bool project_before_merge = false;
  DType kv = DType::kE4M3;
  std::int64_t requests = 1;
  std::int64_t length = 0;

  ParallelConfig config() const {
    ParallelConfig config;
    config.heads = heads;
    config.tp = config.dcp = ranks;
    config.kv_dtype = kv;
    config.combine = combine;
    config.project_before_merge = project_before_merge;
    return config;
  }
  std::int64_t columns() const {
    return table_columns(config().sharding(), length, config().page_size);
  }
  std::int64_t cache_bytes() const {  // of a rank
    return requests * columns() * config().page_size * MlaDims{}.row() *
           static_cast<std::int64_t>(size_bytes(kv));
  }
  // Of one step by the card's rates: keys read once at 4 TB/s, products at 500 TFLOP/s.
  double rough_seconds() const {
    const double flop = 2.0 * static_cast<double>(requests * heads * (length / ranks)) * 1088;
    return 5e-5 + std::max(static_cast<double>(cache_bytes()) / 4e12, flop / 5e14);
  }
};

// Pairs of event nodes in a captured step, by what they enclose.
class StageClock {
 public:
  ~StageClock() {
    for (const Span& span : spans_) {
      cudaEventDestroy(span.begin);
      cudaEventDestroy(span.end);
    }
  }

  template <typename Work>
  void around(const char* stage, Stream stream, const Work& work) {
    Span span{stage, nullptr, nullptr};
    check_cuda(cudaEventCreate(&span.begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&span.end), "cudaEventCreate");
    spans_.push_back(span);
    check_cuda(cudaEventRecordWithFlags(span.begin, cuda_stream(stream), cudaEventRecordExternal),
               "cudaEventRecordWithFlags");
    work();
    check_cuda(cudaEventRecordWithFlags(span.end, cuda_stream(stream), cudaEventRecordExternal),
               "cudaEventRecordWithFlags");
  }

  // Microseconds of the latest replay, by stage.
  std::map<std::string, double> read() const {
    std::map<std::string, double> sums;
    for (const Span& span : spans_) {
      float milliseconds = 0.0F;
      check_cuda(cudaEventElapsedTime(&milliseconds, span.begin, span.end), "cudaEventElapsedTime");
      sums[span.stage] += 1e3 * milliseconds;
    }
    return sums;
  }

 private:
  struct Span {
    const char* stage;
    cudaEvent_t begin;
    cudaEvent_t end;
  };
  std::vector<Span> spans_;
};

class ClockedAttention final : public ForwardingAttentionOps {
 public:
  ClockedAttention(AttentionOps& next, StageClock& clock)
      : ForwardingAttentionOps(next), clock_(clock) {}
  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override {
    clock_.around("schedule_us", stream,
                  [&] { next().build_schedule(schedule, lengths, shape, stream); });
  }
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override {
    clock_.around("attention_us", stream, [&] {
      next().decode(out, lse, query, cache, rows, schedule, scales, workspace, stream);
    });
  }

 private:
  StageClock& clock_;
};

class ClockedCombine final : public ForwardingCombineOps {
 public:
  ClockedCombine(CombineOps& next, StageClock& clock) : ForwardingCombineOps(next), clock_(clock) {}
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override {
    clock_.around("correction_us", stream,
                  [&] { next().correct(corrected, partial, lses, rank, stream); });
  }
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override {
    clock_.around("correction_us", stream, [&] { next().merge(out, lse, partials, lses, stream); });
  }
  void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
            Stream stream) override {
    clock_.around("correction_us", stream, [&] { next().pack(packed, partial, lse, stream); });
  }
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override {
    clock_.around("correction_us", stream, [&] { next().unpack(partials, lses, packed, stream); });
  }

 private:
  StageClock& clock_;
};

class ClockedCollective final : public ForwardingCollective {
 public:
  ClockedCollective(Collective& next, StageClock& clock)
      : ForwardingCollective(next), clock_(clock) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    clock_.around("collectives_us", stream, [&] { forward(call, out, in, stream); });
  }

  StageClock& clock_;
};

// A card with what every case on it shares.
struct Card {
  explicit Card(int index) : bench(index), ops(bench.device()) {
    const DeviceGuard guard(index);
    check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  }
  BenchDevice bench;
  CudaOps ops;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

// One rank's tensors of a case; steps take the caches in turn.
class RankStep {
 public:
  RankStep(Card& card, const Case& c, int rank)
      : card_(card),
        config_(c.config()),
        workspace_(card.bench.device(), config_, MlaDims{}, card.ops.attention,
                   {c.requests, c.requests, c.columns(), 1}) {
    BenchDevice& bench = card.bench;
    const MlaDims dims;
    const std::int64_t h = config_.local_heads();
    const std::int64_t value_heads = c.project_before_merge ? config_.gathered_heads() : h;
    q_nope_ = bench.random(DType::kBF16, {c.requests, h, dims.nope}, "q_nope");
    q_rope_ = bench.random(DType::kBF16, {c.requests, h, dims.rope}, "q_rope");
    kv_c_ = bench.random(DType::kBF16, {c.requests, dims.latent}, "kv_c");
    k_pe_ = bench.random(DType::kBF16, {c.requests, dims.rope}, "k_pe");
    w_uk_ = bench.random(DType::kBF16, {h, dims.nope, dims.latent}, "w_uk");
    w_uv_ = bench.random(DType::kBF16, {value_heads, dims.latent, dims.value}, "w_uv");
    const std::int64_t sets = std::min<std::int64_t>(kRotation / c.cache_bytes() + 1, 64);
    BlockTable table;
    table.columns = c.columns();
    table.pages.resize(static_cast<std::size_t>(c.requests * table.columns));
    std::iota(table.pages.begin(), table.pages.end(), 0);
    std::shuffle(table.pages.begin(), table.pages.end(), std::mt19937(3));
    for (std::int64_t i = 0; i < sets; ++i) {
      caches_.push_back(bench.random(
          c.kv, {static_cast<std::int64_t>(table.pages.size()), config_.page_size, dims.row()},
          "cache"));
    }
    const std::vector<StepRequest> requests(static_cast<std::size_t>(c.requests), {c.length, 1});
    workspace_.load(plan_decode(config_.sharding(), rank, config_.page_size, requests, table),
                    bench.stream());
  }

  void enqueue(std::size_t step, const Ops& ops, Collective& collective) const {
    const DecodeInputs inputs = {
        q_nope_, q_rope_, kv_c_, k_pe_, w_uk_, w_uv_, {caches_[step % caches_.size()], 1.0F}};
    decode(config_, kSoftmaxScale, inputs, workspace_, ops, collective, card_.bench.stream());
  }

 private:
  Card& card_;
  ParallelConfig config_;
  DecodeWorkspace workspace_;
  Tensor q_nope_, q_rope_, kv_c_, k_pe_, w_uk_, w_uv_;
  std::vector<Tensor> caches_;
};

struct Times {
  double step_us = 0.0;
  std::map<std::string, double> split;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Seconds of one launch, after all ranks have come.
double replay(Card& card, const CudaGraph& graph, Collective& collective,
              std::barrier<>& together) {
  const cudaStream_t stream = cuda_stream(card.bench.stream());
  together.arrive_and_wait();
  check_cuda(cudaEventRecord(card.begin, stream), "cudaEventRecord");
  graph.launch(card.bench.stream());
  check_cuda(cudaEventRecord(card.end, stream), "cudaEventRecord");
  collective.synchronize(card.bench.stream());
  float milliseconds = 0.0F;
  check_cuda(cudaEventElapsedTime(&milliseconds, card.begin, card.end), "cudaEventElapsedTime");
  return 1e-3 * milliseconds;
}

Times time_rank(Card& card, const Case& c, Collective& collective, std::barrier<>& together) {
  const DeviceGuard guard(card.bench.device().index());
  const Stream stream = card.bench.stream();
  const Stream streams[] = {stream};
  const RankStep step(card, c, collective.rank());
  step.enqueue(0, card.ops.ops(), collective);  // loads kernels, connects, sizes scratch memory
  collective.synchronize(stream);

  const int steps = static_cast<int>(std::clamp(kGraphSeconds / c.rough_seconds(), 1.0, 20.0));
  Times times;
  {
    const CudaGraph graph(card.bench.device(), streams, [&] {
      for (int i = 0; i < steps; ++i) {
        step.enqueue(static_cast<std::size_t>(i), card.ops.ops(), collective);
      }
    });
    std::vector<double> seconds;
    replay(card, graph, collective, together);
    for (int i = 0; i < kReplays; ++i) {
      seconds.push_back(replay(card, graph, collective, together));
    }
    times.step_us = 1e6 * median(seconds) / steps;
  }
  StageClock clock;
  ClockedAttention attention(card.ops.attention, clock);
  ClockedCombine combine(card.ops.combine, clock);
  ClockedCollective clocked(collective, clock);
  const CudaGraph graph(card.bench.device(), streams, [&] {
    step.enqueue(0, {card.ops.query, card.ops.cache, attention, combine}, clocked);
  });
  std::map<std::string, std::vector<double>> split;
  replay(card, graph, collective, together);
  for (int i = 0; i < kReplays; ++i) {
    replay(card, graph, collective, together);
    for (const auto& [stage, us] : clock.read()) split[stage].push_back(us);
  }
  for (const auto& [stage, us] : split) times.split[stage] = median(us);
  return times;
}

class Cards {
 public:
  explicit Cards(int count) {
    std::vector<CudaDevice*> devices;
    for (int index = 0; index < count; ++index) {
      cards_.push_back(std::make_unique<Card>(index));
      devices.push_back(&cards_.back()->bench.device());
    }
    if (count > 1) group_ = std::make_unique<NcclGroup>(devices);
  }

  int count() const { return static_cast<int>(cards_.size()); }

  Times time(const Case& c) {
    std::barrier<> together(c.ranks);
    if (c.ranks == 1) {
      CallLog log;
      FakeCollective alone(0, 1, log);
      OneCard collective(alone, cards_[0]->bench.device());
      return time_rank(*cards_[0], c, collective, together);
    }
    std::mutex mutex;
    Times slowest;
    group_->run([&](Collective& collective) {
      const int rank = collective.rank();
      Times mine;
      try {
        mine = time_rank(*cards_[static_cast<std::size_t>(rank)], c, collective, together);
      } catch (...) {
        together.arrive_and_drop();  // the others must not wait here for ever
        throw;
      }
      const std::lock_guard lock(mutex);
      slowest.step_us = std::max(slowest.step_us, mine.step_us);
      if (rank == 0) slowest.split = mine.split;
    });
    return slowest;
  }

 private:
  // A group of one that waits for its card.
  class OneCard final : public ForwardingCollective {
   public:
    OneCard(Collective& next, CudaDevice& device) : ForwardingCollective(next), device_(device) {}
    void synchronize(Stream stream) override { device_.synchronize(stream); }

   private:
    CudaDevice& device_;
  };

  std::vector<std::unique_ptr<Card>> cards_;
  std::unique_ptr<NcclGroup> group_;
};

// Step times of one card with all heads, by requests, length and dtype.
std::map<std::tuple<std::int64_t, std::int64_t, DType>, double>& one_card_us() {
  static std::map<std::tuple<std::int64_t, std::int64_t, DType>, double> times;
  return times;
}

Clock::time_point& deadline() {
  static Clock::time_point point;
  return point;
}

void time_step(benchmark::State& state, Cards& cards, const Case& c) {
  if (c.cache_bytes() > kMostCacheBytes) return state.SkipWithError("the cache does not fit");
  if (Clock::now() > deadline()) return state.SkipWithError("MLADCP_BENCH_SECONDS are over");
  Times times;
  try {
    for (auto _ : state) {
      times = cards.time(c);
      state.SetIterationTime(1e-6 * times.step_us);
    }
  } catch (const Error& error) {
    return state.SkipWithError(error.what());
  }
  const auto key = std::tuple(c.requests, c.length, c.kv);
  if (c.name == "one_card") one_card_us()[key] = times.step_us;
  const auto single = one_card_us().find(key);
  if (single != one_card_us().end() && c.heads == 128) {
    state.counters["speedup_over_one_card"] = single->second / times.step_us;
  }
  for (const auto& [stage, us] : times.split) state.counters[stage] = us;
  state.counters["cache_gib_per_card"] = static_cast<double>(c.cache_bytes()) / (1 << 30);
  state.counters["tokens_per_second"] = 1e6 * static_cast<double>(c.requests) / times.step_us;
}

std::vector<Case> cases_of(int cards, std::int64_t requests, std::int64_t length, DType kv) {
  Case one;
  one.kv = kv;
  one.requests = requests;
  one.length = length;
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int ranks, std::int64_t heads, Combine combine,
                       bool project) {
    Case c = one;
    c.name = name;
    c.ranks = ranks;
    c.heads = heads;
    c.combine = combine;
    c.project_before_merge = project;
    cases.push_back(c);
  };
  using enum Combine;
  add("one_card", 1, 128, kAllGatherReduceScatter, false);
  if (cards == 1) return cases;
  add("dcp_ag_rs", cards, 128, kAllGatherReduceScatter, false);
  add("dcp_a2a_packed", cards, 128, kAllToAllPacked, false);
  add("dcp_a2a", cards, 128, kAllToAll, false);
  add("dcp_ag_rs_projected", cards, 128, kAllGatherReduceScatter, true);
  add("tp_without_dcp", 1, 128 / cards, kAllGatherReduceScatter, false);
  add("dcp_16_heads_a_rank", cards, 16 * cards, kAllGatherReduceScatter, false);
  return cases;
}

void register_cases(Cards& cards) {
  struct Point {
    std::int64_t requests, length;
    DType kv;
  };
  constexpr std::int64_t k = 1024;
  std::vector<Point> points = {
      {16, 128 * k, DType::kE4M3},  {1, 128 * k, DType::kE4M3},   {64, 128 * k, DType::kE4M3},
      {128, 128 * k, DType::kE4M3}, {16, 16 * k, DType::kE4M3},   {16, 512 * k, DType::kE4M3},
      {16, 128 * k, DType::kBF16},  {1, 16 * k, DType::kE4M3},    {64, 16 * k, DType::kE4M3},
      {128, 16 * k, DType::kE4M3},  {1, 512 * k, DType::kE4M3},   {64, 512 * k, DType::kE4M3},
      {1, 1024 * k, DType::kE4M3},  {16, 1024 * k, DType::kE4M3}, {128, 512 * k, DType::kE4M3}};
  for (const Point& point : points) {
    for (const Case& c : cases_of(cards.count(), point.requests, point.length, point.kv)) {
      const std::string label = c.name + "/cards" + std::to_string(c.ranks) + "/H" +
                                std::to_string(c.heads) + "/B" + std::to_string(c.requests) + "/S" +
                                std::to_string(c.length) + "/" + std::string(name(c.kv));
      benchmark::RegisterBenchmark(
          label.c_str(), [&cards, c](benchmark::State& state) { time_step(state, cards, c); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

// As many as divide the heads.
int usable_cards() {
  const auto visible = static_cast<int>(available_cuda_devices().size());
  int cards = 1;  // without any, making the first says why
  while (2 * cards <= visible) cards *= 2;
  return cards;
}

int run(int argc, char** argv) {
  const char* budget = std::getenv("MLADCP_BENCH_SECONDS");
  deadline() = Clock::now() + std::chrono::seconds(budget != nullptr ? std::atoi(budget) : 55);
  // NVLink multicast can take the GPUs of a shared host down with it: off unless asked for.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  Cards cards(usable_cards());
  register_cases(cards);
  benchmark::AddCustomContext("cards", std::to_string(cards.count()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) {
  try {
    return mladcp::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
