// Conversions between fp32, bf16 and e4m3 of whole arrays, in bytes read plus bytes written.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "core/conversions.h"

namespace mladcp {
namespace {

constexpr float kScale = 0.1f;

std::vector<float> normal_values(std::size_t size) {
  std::vector<float> values(size);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (float& x : values) x = normal(random);
  return values;
}

template <typename T>
std::vector<T> input_of(std::size_t size) {
  std::vector<T> input(size);
  if constexpr (std::is_same_v<T, float>) {
    return normal_values(size);
  } else {
    convert(input, normal_values(size));
    return input;
  }
}

// args: elements; 2^15 stay in the caches, 2^22 do not.
template <typename Out, typename In, typename Function>
void run(benchmark::State& state, const Function& function) {
  const auto size = static_cast<std::size_t>(state.range(0));
  const std::vector<In> in = input_of<In>(size);
  std::vector<Out> out(size);
  for (auto _ : state) {
    function(std::span<Out>(out), std::span<const In>(in));
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const auto elements = static_cast<std::int64_t>(state.iterations()) * state.range(0);
  state.SetBytesProcessed(elements * static_cast<std::int64_t>(sizeof(Out) + sizeof(In)));
  state.SetItemsProcessed(elements);
}

template <typename Out, typename In>
void BM_Convert(benchmark::State& state) {
  run<Out, In>(state, [](auto out, auto in) { convert(out, in); });
}

template <typename In>
void BM_Quantize(benchmark::State& state) {
  run<Float8E4M3, In>(state, [](auto out, auto in) { quantize(out, in, kScale); });
}

template <typename Out>
void BM_Dequantize(benchmark::State& state) {
  run<Out, Float8E4M3>(state, [](auto out, auto in) { dequantize(out, in, kScale); });
}

// What the memory allows.
void BM_Memcpy(benchmark::State& state) {
  run<float, float>(state,
                    [](auto out, auto in) { std::memcpy(out.data(), in.data(), in.size_bytes()); });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("elements")->Arg(1 << 15)->Arg(1 << 22);
}

BENCHMARK(BM_Memcpy)->Apply(sizes);
BENCHMARK(BM_Convert<Float8E4M3, float>)->Apply(sizes);
BENCHMARK(BM_Convert<float, Float8E4M3>)->Apply(sizes);
BENCHMARK(BM_Convert<BFloat16, float>)->Apply(sizes);
BENCHMARK(BM_Convert<float, BFloat16>)->Apply(sizes);
BENCHMARK(BM_Quantize<float>)->Apply(sizes);
BENCHMARK(BM_Quantize<BFloat16>)->Apply(sizes);
BENCHMARK(BM_Dequantize<float>)->Apply(sizes);
BENCHMARK(BM_Dequantize<BFloat16>)->Apply(sizes);

}  // namespace
}  // namespace mladcp

BENCHMARK_MAIN();
