// Dense MLA decode on one GPU: time, TFLOP/s, GB/s of decode + combine for a fixed list of shapes.
//
//   decode_bench [--lengths FILE] [--json FILE] [--rows NAME[,NAME...]] [--overhead BLOCKS]
//                [--parts PARTS] [--bf16] [--regimes] [--no-combine] [--hot]
//
// Timing: 20 launches (decode + combine) over rotating cache sets, captured in one graph; mean of a
// replay, median of 9 replays, each shape after half a second of idleness, because load lowers the
// clocks of what follows. Pages of 64 tokens in random order. --regimes adds burst (first 50
// ms after idle) and sustained (last second of 3 s of back-to-back replays) for six shapes. Ratios
// are to a public FP8 kernel (BF16 with --bf16) measured the same way on one H200.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/scheduler.h"
#include "kernels/decode/combine/combine.h"
#include "kernels/decode/sm90_bf16/decode.h"
#include "kernels/decode/sm90_common/schedule.h"
#include "kernels/decode/sm90_fp8/decode.h"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

constexpr int kD = kDecodeQkDim;
constexpr int kL = kDecodeLatentRank;
constexpr int kPage = 64;
constexpr int kLaunches = 20;
constexpr int kReplays = 9;
constexpr std::chrono::milliseconds kIdle(500);

// The public kernels' times are of one H200.
struct Shape {
  int batch;
  int keys;  // per request, 0: the lengths of the trace
  int heads;
  int q_len;
  double fp8_us;   // the public FP8 kernel
  double bf16_us;  // the public BF16 kernel
};

constexpr Shape kShapes[] = {
    {1, 65536, 16, 1, 29.0, 98.1},       {16, 16384, 16, 1, 60.7, 90.4},
    {64, 4096, 16, 1, 64.2, 91.2},       {128, 4096, 16, 1, 108.8, 151.2},
    {128, 16384, 16, 1, 429.2, 583.6},   {128, 0, 16, 1, 86.5, 121.3},
    {1, 65536, 64, 1, 34.5, 106.9},      {16, 16384, 64, 1, 67.5, 99.5},
    {64, 4096, 64, 1, 73.7, 100.9},      {128, 4096, 64, 1, 115.1, 153.7},
    {128, 16384, 64, 1, 458.7, 648.4},   {128, 0, 64, 1, 96.9, 141.6},
    {1, 65536, 128, 1, 44.1, 84.8},      {16, 16384, 128, 1, 117.4, 133.8},
    {64, 4096, 128, 1, 125.0, 126.1},    {128, 4096, 128, 1, 238.5, 258.5},
    {128, 16384, 128, 1, 855.7, 1136.2}, {128, 0, 128, 1, 173.4, 205.3},
    {1, 65536, 128, 2, 66.9, 91.5},      {16, 16384, 128, 2, 216.5, 240.9},
    {128, 4096, 128, 2, 452.1, 583.4},   {128, 16384, 128, 2, 1665.9, 2213.8},
    {128, 0, 128, 2, 323.1, 350.8},
};

struct RegimeShape {
  int batch;
  int keys;
  int heads;
  double fp8_burst_us;
  double fp8_sustained_us;
  double bf16_burst_us;
  double bf16_sustained_us;
};
constexpr RegimeShape kRegimes[] = {
    {64, 4096, 16, 63.3, 66.0, 92.1, 95.4},      {128, 16384, 16, 412.4, 462.5, 580.0, 626.4},
    {64, 4096, 64, 73.6, 76.5, 102.1, 106.6},    {128, 16384, 64, 426.9, 500.6, 643.0, 688.6},
    {64, 4096, 128, 114.5, 120.2, 126.4, 146.6}, {128, 16384, 128, 807.4, 894.2, 963.0, 1156.1},
};

constexpr double kCeilingGbps = 4434.0;  // pure read on an H200

__device__ float hashed_normal(std::uint32_t x) {
  const auto mix = [](std::uint32_t v) {
    v ^= v >> 16;
    v *= 0x7feb352dU;
    v ^= v >> 15;
    v *= 0x846ca68bU;
    return v ^ (v >> 16);
  };
  const std::uint32_t a = mix(x * 2U + 1U);
  const std::uint32_t b = mix(x * 2U + 0x9e3779b9U);
  const float sum = static_cast<float>(a & 0xffff) + static_cast<float>(a >> 16) +
                    static_cast<float>(b & 0xffff) + static_cast<float>(b >> 16);
  return (sum * (1.0F / 65536.0F) - 2.0F) * 1.7320508F;
}

__global__ void fill_e4m3(std::uint32_t* words, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    std::uint32_t word = 0;
    for (int b = 0; b < 4; ++b) {
      const float x = hashed_normal(static_cast<std::uint32_t>(4 * i + b));
      word |= static_cast<std::uint32_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))
              << (8 * b);
    }
    words[i] = word;
  }
}

__global__ void fill_bf16(__nv_bfloat16* values, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    values[i] = __float2bfloat16(hashed_normal(static_cast<std::uint32_t>(i)));
  }
}

template <typename T>
T* device_alloc(std::size_t count) {
  void* p = nullptr;
  check_cuda(cudaMalloc(&p, std::max<std::size_t>(count * sizeof(T), 16)), "cudaMalloc");
  return static_cast<T*>(p);
}

template <typename T>
void upload(T* device, const std::vector<T>& host) {
  check_cuda(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
             "cudaMemcpy");
}

// Pages of random values that all shapes share, and buffers large enough for any of them.
class Arena {
 public:
  Arena(std::size_t pages, bool bf16) : num_pages(pages) {
    cache = random_values(pages * kPage * kD, bf16);
    query = random_values(static_cast<std::size_t>(kMaxRows) * kD, bf16);
    out = device_alloc<std::uint16_t>(static_cast<std::size_t>(kMaxRows) * kL);
    lse = device_alloc<float>(kMaxRows);
    partial_out = device_alloc<float>(static_cast<std::size_t>(kMaxPartialRows) * kL);
    partial_lse = device_alloc<float>(kMaxPartialRows);
    order.resize(pages);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    std::shuffle(order.begin(), order.end(), random);
    check_cuda(cudaDeviceSynchronize(), "fill");
  }

  static constexpr int kMaxRows = 128 * 256;
  static constexpr int kMaxPartialRows = (128 + 132) * 256;
  std::size_t num_pages;
  void* cache;
  void* query;
  std::uint16_t* out;
  float* lse;
  float* partial_out;
  float* partial_lse;
  std::vector<std::int32_t> order;

 private:
  static void* random_values(std::size_t count, bool bf16) {
    void* values = device_alloc<std::uint8_t>(count * (bf16 ? 2 : 1));
    if (bf16) {
      fill_bf16<<<1320, 512>>>(static_cast<__nv_bfloat16*>(values), count);
    } else {
      fill_e4m3<<<1320, 512>>>(static_cast<std::uint32_t*>(values), count / 4);
    }
    return values;
  }
};

struct Stats {
  double us = 0.0;
  double tflops = 0.0;
  double gbps = 0.0;
};

// One shape, ready to replay.
class Problem {
 public:
  Problem(const Arena& arena, const std::vector<std::int32_t>& lengths, int heads, int q_len,
          int overhead, int parts_wanted, bool bf16, bool combine, std::size_t hot_pages,
          cudaStream_t stream)
      : stream_(stream) {
    const int batch = static_cast<int>(lengths.size());
    std::size_t columns = 0;
    std::size_t set_pages = 0;
    for (const int keys : lengths) {
      const auto pages = static_cast<std::size_t>((keys + kPage - 1) / kPage);
      columns = std::max(columns, pages);
      set_pages += pages;
      keys_ += keys;
    }
    const int rows = batch * q_len;
    flop_ = 2.0 * q_len * heads * static_cast<double>(keys_) * (kD + kL);
    const int element_bytes = bf16 ? 2 : 1;
    bytes_ = static_cast<double>(keys_) * kD * element_bytes +
             static_cast<double>(rows) * heads * (kD * element_bytes + 2 * kL);

    std::vector<std::int32_t> row_begin(static_cast<std::size_t>(batch) + 1);
    std::vector<std::int32_t> visible;
    for (int b = 0; b < batch; ++b) {
      row_begin[static_cast<std::size_t>(b)] = b * q_len;
      // All rows see everything: the published figures count rows * keys in full.
      for (int j = 0; j < q_len; ++j) visible.push_back(lengths[static_cast<std::size_t>(b)]);
    }
    row_begin.back() = rows;

    int sms = 0;
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attributes");
    const int tile = bf16 ? 64 : sm90_fp8_decode_tile_rows(q_len, heads);
    const int num_parts =
        parts_wanted > 0 ? parts_wanted : std::max(1, sms / ((q_len * heads + tile - 1) / tile));
    std::vector<std::int32_t> parts(static_cast<std::size_t>(num_parts) * kPartFields);
    std::vector<std::int32_t> splits(lengths.size() + 1);
    ScheduleParams schedule;
    schedule.overhead_blocks = overhead >= 0 ? overhead : sm90_decode_overhead_blocks(q_len, heads);
    build_schedule(parts, splits, lengths, ScheduleDialect::kBlocks, schedule);
    pieces_ = splits.back();

    DecodeParams& p = params_;
    p.query = arena.query;
    p.query_dtype = bf16 ? DType::kBF16 : DType::kE4M3;
    p.query_head_stride = kD;
    p.query_row_stride = static_cast<std::int64_t>(heads) * kD;
    p.cache = arena.cache;
    p.cache_dtype = p.query_dtype;
    p.cache_row_stride = kD;
    p.cache_page_stride = kPage * kD;
    p.page_size = kPage;
    p.num_pages = static_cast<std::int32_t>(arena.num_pages);
    p.block_table_stride = static_cast<std::int64_t>(columns);
    p.block_table_columns = static_cast<std::int32_t>(columns);
    p.row_begin = keep(row_begin);
    p.visible = keep(visible);
    p.lengths = keep(lengths);
    p.num_requests = batch;
    p.num_rows = rows;
    p.num_heads = heads;
    p.max_rows_per_request = q_len;
    p.parts = reinterpret_cast<const DecodePart*>(keep(parts));
    p.num_splits = keep(splits);
    p.num_parts = num_parts;
    p.logit_scale = 1.0F / 24.0F;
    p.output_scale = 1.0F;
    p.out = arena.out;
    p.out_head_stride = kL;
    p.out_row_stride = static_cast<std::int64_t>(heads) * kL;
    p.lse = arena.lse;
    p.lse_head_stride = 1;
    p.lse_row_stride = heads;
    p.partial_out = arena.partial_out;
    p.partial_lse = arena.partial_lse;
    p.f16_partials = !bf16;

    // As many sets as launches, each the next run of the shuffled pages, wrapping round the pool.
    std::size_t at = 0;
    for (int i = 0; i < kLaunches; ++i) {
      std::vector<std::int32_t> table(columns * static_cast<std::size_t>(batch), 0);
      for (int b = 0; b < batch; ++b) {
        const int pages = (lengths[static_cast<std::size_t>(b)] + kPage - 1) / kPage;
        for (int j = 0; j < pages; ++j) {
          table[static_cast<std::size_t>(b) * columns + static_cast<std::size_t>(j)] =
              arena.order[at++ % std::min(arena.num_pages, hot_pages)];
        }
      }
      tables_.push_back(keep(table));
    }
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (const std::int32_t* table : tables_) {
      params_.block_table = table;
      if (bf16) {
        launch_sm90_bf16_decode(params_, stream_);
      } else {
        launch_sm90_fp8_decode(params_, stream_);
      }
      if (combine) launch_decode_combine(params_, stream_);
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Problem() {
    for (void* p : owned_) static_cast<void>(cudaFree(p));
    static_cast<void>(cudaGraphExecDestroy(graph_));
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // Microseconds of one launch, mean of a replay.
  double replay() {
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "decode");
    float ms = 0.0F;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return 1e3 * ms / kLaunches;
  }

  Stats stats(double us) const { return {us, flop_ / us * 1e-6, bytes_ / us * 1e-3}; }

  Stats median() {
    replay();
    std::this_thread::sleep_for(kIdle);
    std::vector<double> us;
    for (int i = 0; i < kReplays; ++i) us.push_back(replay());
    std::sort(us.begin(), us.end());
    return stats(us[us.size() / 2]);
  }

  // Mean over replays that start inside [from_s, to_s) of continuous load.
  Stats window(double from_s, double to_s) {
    const auto start = std::chrono::steady_clock::now();
    double total = 0.0;
    int count = 0;
    while (true) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (elapsed.count() >= to_s) break;
      const double us = replay();
      if (elapsed.count() >= from_s) {
        total += us;
        ++count;
      }
    }
    return stats(total / std::max(count, 1));
  }

  int pieces() const { return pieces_; }
  std::int64_t keys() const { return keys_; }

 private:
  template <typename T>
  T* keep(const std::vector<T>& host) {
    T* device = device_alloc<T>(host.size());
    upload(device, host);
    owned_.push_back(device);
    return device;
  }

  cudaStream_t stream_;
  DecodeParams params_{};
  std::vector<std::int32_t*> tables_;
  std::vector<void*> owned_;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::int64_t keys_ = 0;
  int pieces_ = 0;
  double flop_ = 0.0;
  double bytes_ = 0.0;
};

std::vector<std::int32_t> shape_lengths(int batch, int keys,
                                        const std::vector<std::int32_t>& trace) {
  if (keys > 0) return std::vector<std::int32_t>(static_cast<std::size_t>(batch), keys);
  return {trace.begin(), trace.begin() + std::min<std::ptrdiff_t>(batch, std::ssize(trace))};
}

std::string shape_name(int batch, int keys, int heads, int q_len) {
  char name[64];
  std::snprintf(name, sizeof name, "B%d S%d H%d Q%d", batch, keys, heads, q_len);
  return name;
}

// Whether one of the comma-separated parts of `filter` occurs in `name`; an empty filter takes all.
bool is_wanted(const std::string& filter, const std::string& name) {
  std::stringstream parts(filter);
  std::string part;
  while (std::getline(parts, part, ',')) {
    if (name.find(part) != std::string::npos) return true;
  }
  return filter.empty();
}

// The column of context lengths of a trace: ContextTokens or input_tokens.
std::vector<std::int32_t> read_lengths(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  int column = -1;
  std::stringstream header(line);
  std::string field;
  for (int i = 0; std::getline(header, field, ','); ++i) {
    if (field.find("ContextTokens") != std::string::npos ||
        field.find("input_tokens") != std::string::npos) {
      column = i;
    }
  }
  std::vector<std::int32_t> lengths;
  while (column >= 0 && std::getline(file, line)) {
    std::stringstream row(line);
    for (int i = 0; i <= column; ++i) std::getline(row, field, ',');
    lengths.push_back(std::atoi(field.c_str()));
  }
  return lengths;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

int run(int argc, char** argv) {
  std::string lengths_path;
  std::string json_path;
  std::string rows_filter;
  int overhead = -1;  // what the kernel asks for
  int parts = 0;      // as many as fill the card
  bool bf16 = false;
  bool regimes = false;
  bool combine = true;
  std::size_t hot_pages = SIZE_MAX;
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    command += (i ? " " : "") + (i ? argument : std::string("decode_bench"));
    const auto value = [&] { return i + 1 < argc ? std::string(argv[i + 1]) : std::string(); };
    if (argument == "--lengths") lengths_path = value();
    if (argument == "--json") json_path = value();
    if (argument == "--rows") rows_filter = value();
    if (argument == "--overhead") overhead = std::atoi(value().c_str());
    if (argument == "--parts") parts = std::atoi(value().c_str());
    if (argument == "--bf16") bf16 = true;
    if (argument == "--regimes") regimes = true;
    if (argument == "--no-combine") combine = false;
    if (argument == "--hot") hot_pages = 600;
  }
  const std::vector<std::int32_t> trace = read_lengths(lengths_path);
  if (trace.empty()) std::printf("no --lengths FILE: rows of the trace are left out\n");

  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  int clock_khz = 0;
  check_cuda(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0), "attributes");
  std::printf("%s, %d SMs, SM clock up to %d MHz, %s\n", device.name, device.multiProcessorCount,
              clock_khz / 1000, today().c_str());
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const Arena arena(20U * 128 * 256, bf16);

  std::ostringstream json;
  json << "{\"schema\": \"mladcp.bench.decode/1\", \"device\": \"" << device.name
       << "\", \"sm_clock_max_mhz\": " << clock_khz / 1000 << ", \"date\": \"" << today()
       << "\", \"command\": \"" << command << "\", \"overhead_blocks\": " << overhead
       << ", \"rows\": [";
  std::printf("%4s %6s %6s %2s %7s %9s %8s %7s %8s %7s\n", "B", "S", "heads", "Q", "pieces", "us",
              "TFLOP/s", "GB/s", "ceiling", bf16 ? "x bf16" : "x fp8");
  double log_ratio = 0.0;
  int count = 0;
  for (const Shape& s : kShapes) {
    if (!is_wanted(rows_filter, shape_name(s.batch, s.keys, s.heads, s.q_len))) continue;
    const std::vector<std::int32_t> lengths = shape_lengths(s.batch, s.keys, trace);
    if (lengths.empty()) continue;
    Problem problem(arena, lengths, s.heads, s.q_len, overhead, parts, bf16, combine, hot_pages,
                    stream);
    const Stats r = problem.median();
    const double peer_us = bf16 ? s.bf16_us : s.fp8_us;
    const double ratio = peer_us / r.us;
    log_ratio += std::log(ratio);
    std::printf("%4d %6s %6d %2d %7d %9.1f %8.0f %7.0f %7.0f%% %7.2f\n", s.batch,
                s.keys > 0 ? std::to_string(s.keys).c_str() : "trace", s.heads, s.q_len,
                problem.pieces(), r.us, r.tflops, r.gbps, 100.0 * r.gbps / kCeilingGbps, ratio);
    std::fflush(stdout);
    json << (count++ ? ", " : "") << "{\"batch\": " << s.batch << ", \"keys\": " << problem.keys()
         << ", \"heads\": " << s.heads << ", \"q_len\": " << s.q_len << ", \"us\": " << r.us
         << ", \"tflops\": " << r.tflops << ", \"gbps\": " << r.gbps << ", \"peer_us\": " << peer_us
         << ", \"ratio\": " << ratio << "}";
  }
  if (count > 0) std::printf("geometric mean of ratios: %.3f\n", std::exp(log_ratio / count));
  json << "], \"regimes\": [";
  if (regimes) {
    std::printf("%4s %6s %6s  burst: %8s %8s %7s %7s  sustained: %8s %8s %7s %7s\n", "B", "S",
                "heads", "us", "TFLOP/s", "GB/s", "x peer", "us", "TFLOP/s", "GB/s", "x peer");
    int n = 0;
    for (const RegimeShape& s : kRegimes) {
      if (!is_wanted(rows_filter, shape_name(s.batch, s.keys, s.heads, 1))) continue;
      Problem problem(arena, shape_lengths(s.batch, s.keys, trace), s.heads, 1, overhead, parts,
                      bf16, combine, hot_pages, stream);
      problem.replay();
      std::this_thread::sleep_for(kIdle);
      const Stats burst = problem.window(0.0, 0.05);
      const Stats steady = problem.window(2.0, 3.0);
      std::printf(
          "%4d %6d %6d         %8.1f %8.0f %7.0f %7.2f             %8.1f %8.0f %7.0f %7.2f\n",
          s.batch, s.keys, s.heads, burst.us, burst.tflops, burst.gbps,
          (bf16 ? s.bf16_burst_us : s.fp8_burst_us) / burst.us, steady.us, steady.tflops,
          steady.gbps, (bf16 ? s.bf16_sustained_us : s.fp8_sustained_us) / steady.us);
      std::fflush(stdout);
      json << (n++ ? ", " : "") << "{\"batch\": " << s.batch << ", \"keys_per_request\": " << s.keys
           << ", \"heads\": " << s.heads << ", \"burst_us\": " << burst.us
           << ", \"burst_tflops\": " << burst.tflops << ", \"burst_gbps\": " << burst.gbps
           << ", \"sustained_us\": " << steady.us << ", \"sustained_tflops\": " << steady.tflops
           << ", \"sustained_gbps\": " << steady.gbps << "}";
    }
  }
  json << "]}\n";
  if (!json_path.empty()) std::ofstream(json_path) << json.str();
  return 0;
}

}  // namespace
}  // namespace mladcp

int main(int argc, char** argv) {
  try {
    return mladcp::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_bench: %s\n", error.what());
    return 3;
  }
}
