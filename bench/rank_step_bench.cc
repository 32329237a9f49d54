// What one rank's step costs beside its attention: concat + quantise of its own heads, scheduler
// metadata, mask of empty rows, LSE correction.
// Timing: mean of 20 launches captured in one graph, median of 5 replays; the attention runs over
// rotating caches past the L2. Twice: each of the four in a graph of its own (share_of_parts: their
// sum), and all in one graph with the order and the branches of core/decode.cc, where beside_us is
// what the four add to a graph of the same steps without them, which absorb and attend
// (share_of_attention). Collectives are left out. Both shares are of the attention in a graph of
// its own.
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

std::vector<std::int32_t> shuffled(std::int64_t count) {
  std::vector<std::int32_t> values = counted(count);
  std::shuffle(values.begin(), values.end(), std::mt19937(3));
  return values;
}

struct StepShape {
  std::int64_t requests;
  std::int64_t keys;       // of a request on this rank
  std::int64_t own_heads;  // of a rank
  std::int64_t ranks;

  std::int64_t heads() const { return own_heads * ranks; }
  std::int64_t pages() const { return requests * keys / kPage; }
};

// One rank's tensors, and the parts of its step as calls on the bench's stream.
class RankStep {
 public:
  RankStep(BenchDevice& bench, const StepShape& s)
      : bench_(bench),
        ops_(bench.device()),
        side_(bench.device()),
        shape_{s.heads(), 1},
        table_(bench.indices(shuffled(s.pages()), "block_table")),
        request_(bench.indices(counted(s.requests), "request")),
        row_begin_(bench.indices(counted(s.requests + 1), "row_begin")),
        lengths_(bench.indices(repeated(s.requests, s.keys), "lengths")),
        parts_(bench.device(), DType::kI32, {ops_.attention.num_parts(shape_), 8}, "parts"),
        splits_(bench.device(), DType::kI32, {s.requests + 1}, "num_splits"),
        q_nope_(bench.random(DType::kBF16, {s.requests, s.own_heads, 128}, "q_nope")),
        w_uk_(bench.random(DType::kBF16, {s.own_heads, 128, 512}, "w_uk")),
        latent_(bench.random(DType::kBF16, {s.requests, s.own_heads, 512}, "latent")),
        rope_(bench.random(DType::kBF16, {s.requests, s.own_heads, 64}, "rope")),
        own_query_(bench.device(), DType::kE4M3, {s.own_heads, s.requests, 576}, "query"),
        query_(bench.random(DType::kE4M3, {s.heads(), s.requests, 576}, "gathered query")),
        out_(bench.device(), DType::kBF16, {s.requests, s.heads(), 512}, "out"),
        lse_(bench.device(), DType::kF32, {s.requests, s.heads()}, "lse"),
        lses_(bench.random(DType::kF32, {s.ranks, s.requests, s.heads()}, "lses")),
        corrected_(bench.device(), DType::kBF16, {s.heads(), s.requests, 512}, "corrected"),
        workspace_(bench.device(), DType::kBytes,
                   {ops_.attention.decode_workspace_bytes(s.requests, shape_, 512)}, "workspace"),
        rows_{request_,
              lengths_,
              row_begin_,
              lengths_,
              table_.view().reshaped({s.requests, s.keys / kPage}),
              1} {
    const std::int64_t sets = (std::int64_t{1} << 30) / (s.pages() * kPage * 576) + 2;
    for (std::int64_t i = 0; i < sets; ++i) {
      caches_.push_back(bench.random(DType::kE4M3, {s.pages(), kPage, 576}, "cache"));
    }
  }

  void absorb() { ops_.query.absorb(latent_, q_nope_, w_uk_, stream()); }
  void concat() {
    ops_.query.concat_quantize(heads_first(own_query_), latent_, rope_, 0.37F, stream());
  }
  void build_schedule(Stream on) {
    ops_.attention.build_schedule({parts_, splits_}, lengths_, shape_, on);
  }
  void attend(int i) {
    const Tensor& cache = caches_[static_cast<std::size_t>(i) % caches_.size()];
    ops_.attention.decode(out_, lse_, heads_first(query_), {cache, 1.0F}, rows_, {parts_, splits_},
                          {0.0417F, 1.0F}, workspace_, stream());
  }
  void mask() { ops_.combine.mask_empty(out_, lse_, lengths_, stream()); }
  void correct() {
    const auto last_rank = static_cast<int>(lses_.shape()[0]) - 1;
    ops_.combine.correct(heads_first(corrected_), out_, lses_, last_rank, stream());
  }

  void run_bare(int i) {
    absorb();
    attend(i);
  }
  void run_whole(int i) {
    side_.mark(stream());
    absorb();
    concat();
    side_.run_beside(stream(), [&](Stream side) { build_schedule(side); });
    attend(i);
    mask();
    correct();
  }

 private:
  // As core/decode_workspace.h stores it.
  static TensorView heads_first(const Tensor& storage) { return storage.view().transposed(0, 1); }
  Stream stream() const { return bench_.stream(); }

  BenchDevice& bench_;
  CudaOps ops_;
  SideStream side_;
  ScheduleShape shape_;
  Tensor table_, request_, row_begin_, lengths_, parts_, splits_;
  Tensor q_nope_, w_uk_, latent_, rope_, own_query_, query_, out_, lse_, lses_, corrected_;
  Tensor workspace_;
  DecodeRows rows_;
  std::vector<Tensor> caches_;
};

void rank_step(benchmark::State& state) {
  BenchDevice& bench = bench_device();
  RankStep step(bench, {state.range(0), state.range(1), state.range(2), state.range(3)});
  const auto microseconds = [&](const auto& launch) {
    return 1e6 * bench.seconds(kLaunches, launch);
  };
  for (auto _ : state) {
    const double concat = microseconds([&](int) { step.concat(); });
    const double metadata = microseconds([&](int) { step.build_schedule(bench.stream()); });
    const double attention = microseconds([&](int i) { step.attend(i); });
    const double mask = microseconds([&](int) { step.mask(); });
    const double correction = microseconds([&](int) { step.correct(); });
    const double bare = microseconds([&](int i) { step.run_bare(i); });
    const double whole = microseconds([&](int i) { step.run_whole(i); });
    state.SetIterationTime(1e-6 * whole);
    state.counters["attention_us"] = attention;
    state.counters["concat_us"] = concat;
    state.counters["metadata_us"] = metadata;
    state.counters["mask_us"] = mask;
    state.counters["correction_us"] = correction;
    state.counters["share_of_parts"] = (concat + metadata + mask + correction) / attention;
    state.counters["absorb_and_attend_us"] = bare;
    state.counters["beside_us"] = whole - bare;
    state.counters["share_of_attention"] = (whole - bare) / attention;
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
