#include "tests/kernels/decode_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "core/scheduler.h"
#include "kernels/device/cuda_error.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr int kD = kDecodeQkDim;
constexpr int kL = kDecodeLatentRank;
constexpr std::uint8_t kNanByte = 0xFF;  // of both types
constexpr std::uint16_t kCanary = 0xFFC1;
constexpr int kPadHeads = 1;  // between query rows, and between output rows

std::size_t element_bytes(const DecodeProblem& p) { return size_bytes(p.dtype); }

float rounded(const DecodeProblem& p, float x) {
  return p.dtype == DType::kE4M3 ? Float8E4M3::from_float(x).to_float()
                                 : BFloat16::from_float(x).to_float();
}

void write_element(const DecodeProblem& p, std::uint8_t* at, float x) {
  if (p.dtype == DType::kE4M3) {
    *at = Float8E4M3::from_float(x).bits;
  } else {
    const std::uint16_t bits = BFloat16::from_float(x).bits;
    std::memcpy(at, &bits, sizeof bits);
  }
}

// The content pages, NaN where no row of any request may look.
std::vector<std::uint8_t> content_bytes(const DecodeProblem& p) {
  std::vector<int> used(static_cast<std::size_t>(p.content_pages), 0);
  for (int b = 0; b < p.requests(); ++b) {
    const int length = p.length(b);
    for (int i = 0; i * p.page_size < length; ++i) {
      int& keys = used[static_cast<std::size_t>(p.table[b][i])];
      keys = std::max(keys, std::min(p.page_size, length - i * p.page_size));
    }
  }
  const std::size_t row_bytes = kD * element_bytes(p);
  std::vector<std::uint8_t> bytes(
      static_cast<std::size_t>(p.content_pages) * p.page_size * row_bytes, kNanByte);
  parallel_for(threads_per_rank(1), p.content_pages, [&](std::int64_t page) {
    for (int row = 0; row < used[static_cast<std::size_t>(page)]; ++row) {
      std::uint8_t* at = bytes.data() + (page * p.page_size + row) * row_bytes;
      for (int d = 0; d < kD; ++d) {
        write_element(p, at + d * element_bytes(p), p.key(static_cast<int>(page), row, d));
      }
    }
  });
  return bytes;
}

std::vector<float> content_values(const DecodeProblem& p) {
  const std::vector<std::uint8_t> bytes = content_bytes(p);
  std::vector<float> values(bytes.size() / element_bytes(p));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (p.dtype == DType::kE4M3) {
      values[i] = Float8E4M3::from_bits(bytes[i]).to_float();
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
      values[i] = BFloat16::from_bits(bits).to_float();
    }
  }
  return values;
}

std::vector<float> query_values(const DecodeProblem& p) {
  std::vector<float> values(static_cast<std::size_t>(p.rows()) * p.heads * kD);
  for (int t = 0; t < p.rows(); ++t) {
    for (int h = 0; h < p.heads; ++h) {
      float* at = values.data() + (static_cast<std::size_t>(t) * p.heads + h) * kD;
      for (int d = 0; d < kD; ++d) at[d] = rounded(p, p.query(t, h, d));
    }
  }
  return values;
}

// A device copy of host data that lives until the end of the scope.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)), "cudaMalloc");
  }
  template <typename T>
  explicit DeviceBytes(const std::vector<T>& host) : DeviceBytes(host.size() * sizeof(T)) {
    check_cuda(cudaMemcpy(data_, host.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~DeviceBytes() { static_cast<void>(cudaFree(data_)); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::vector<T> read() const {
    std::vector<T> host(bytes_ / sizeof(T));
    check_cuda(cudaMemcpy(host.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

int DecodeProblem::rows() const {
  int rows = 0;
  for (const auto& v : visible) rows += static_cast<int>(v.size());
  return rows;
}

int DecodeProblem::length(int request) const {
  const auto& v = visible[static_cast<std::size_t>(request)];
  return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
}

void DecodeProblem::give_own_pages() {
  table.clear();
  content_pages = 0;
  for (int b = 0; b < requests(); ++b) {
    auto& entries = table.emplace_back();
    for (int i = 0; i * page_size < length(b); ++i) entries.push_back(content_pages++);
  }
}

DecodeReference reference_decode(const DecodeProblem& p) {
  const std::vector<float> keys = content_values(p);
  const std::vector<float> queries = query_values(p);
  DecodeReference reference;
  reference.out.assign(static_cast<std::size_t>(p.rows()) * p.heads * kL, 0.0);
  reference.lse.assign(static_cast<std::size_t>(p.rows()) * p.heads,
                       -std::numeric_limits<double>::infinity());
  struct Row {
    int request;
    int visible;
  };
  std::vector<Row> rows;
  for (int b = 0; b < p.requests(); ++b) {
    for (int v : p.visible[static_cast<std::size_t>(b)]) rows.push_back({b, v});
  }
  parallel_for(
      threads_per_rank(1), static_cast<std::int64_t>(rows.size()) * p.heads,
      [&](std::int64_t index) {
        const Row& row = rows[static_cast<std::size_t>(index / p.heads)];
        // How often the first n keys of a content page are seen.
        std::map<std::pair<int, int>, double> parts;
        for (int i = 0; i * p.page_size < row.visible; ++i) {
          const int n = std::min(p.page_size, row.visible - i * p.page_size);
          parts[{p.table[static_cast<std::size_t>(row.request)][static_cast<std::size_t>(i)], n}] +=
              1.0;
        }
        if (parts.empty()) return;
        const float* q = queries.data() + index * kD;
        std::vector<double> logits;
        for (const auto& [part, times] : parts) {
          for (int k = 0; k < part.second; ++k) {
            const float* key =
                keys.data() + (static_cast<std::size_t>(part.first) * p.page_size + k) * kD;
            double dot = 0.0;
            for (int d = 0; d < kD; ++d) dot += static_cast<double>(q[d]) * key[d];
            logits.push_back(dot * p.logit_scale);
          }
        }
        const double maximum = *std::max_element(logits.begin(), logits.end());
        double sum = 0.0;
        double* out = reference.out.data() + index * kL;
        std::size_t at = 0;
        for (const auto& [part, times] : parts) {
          for (int k = 0; k < part.second; ++k) {
            const double weight = times * std::exp(logits[at++] - maximum);
            sum += weight;
            if (weight == 0.0) continue;
            const float* key =
                keys.data() + (static_cast<std::size_t>(part.first) * p.page_size + k) * kD;
            for (int d = 0; d < kL; ++d) out[d] += weight * key[d];
          }
        }
        for (int d = 0; d < kL; ++d) out[d] *= p.output_scale / sum;
        reference.lse[static_cast<std::size_t>(index)] = maximum + std::log(sum);
      });
  return reference;
}

DecodeResult run_decode(const DecodeProblem& problem, const LaunchDecode& launch,
                        const RunOptions& options) {
  const DecodeProblem& p = problem;
  const int rows = p.rows();
  std::mt19937 random(7);

  // Cache: content pages at shuffled places of a larger pool, one page of NaN between pages'
  // strides.
  const int pool = p.content_pages + 5;
  std::vector<int> place(static_cast<std::size_t>(pool));
  std::iota(place.begin(), place.end(), 0);
  std::shuffle(place.begin(), place.end(), random);
  const auto element = static_cast<std::int64_t>(element_bytes(p));
  const std::int64_t page_elements = static_cast<std::int64_t>(p.page_size) * kD;
  const std::int64_t page_stride = page_elements + 64;
  std::vector<std::uint8_t> cache(static_cast<std::size_t>(pool * page_stride * element), kNanByte);
  const std::vector<std::uint8_t> content = content_bytes(p);
  for (int page = 0; page < p.content_pages; ++page) {
    std::copy_n(content.data() + page * page_elements * element, page_elements * element,
                cache.data() + place[static_cast<std::size_t>(page)] * page_stride * element);
  }

  // Block table: wild where no page is needed.
  std::size_t columns = 1;
  for (const auto& entries : p.table) columns = std::max(columns, entries.size() + 1);
  std::vector<std::int32_t> table(columns * static_cast<std::size_t>(p.requests()));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = i % 2 ? 0x7FFFFFFF : -3;
  for (int b = 0; b < p.requests(); ++b) {
    const auto& entries = p.table[static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      table[static_cast<std::size_t>(b) * columns + i] =
          place[static_cast<std::size_t>(entries[i])];
    }
  }

  // Query: padded rows and heads.
  const std::int64_t head_stride = kD + 16;
  const std::int64_t row_stride = (p.heads + kPadHeads) * head_stride;
  std::vector<std::uint8_t> query(static_cast<std::size_t>(rows * row_stride * element), kNanByte);
  for (int t = 0; t < rows; ++t) {
    for (int h = 0; h < p.heads; ++h) {
      std::uint8_t* at = query.data() + (t * row_stride + h * head_stride) * element;
      for (int d = 0; d < kD; ++d) write_element(p, at + d * element, p.query(t, h, d));
    }
  }

  std::vector<std::int32_t> row_begin{0};
  std::vector<std::int32_t> visible;
  std::vector<std::int32_t> lengths;
  int max_rows = 1;
  for (int b = 0; b < p.requests(); ++b) {
    const auto& v = p.visible[static_cast<std::size_t>(b)];
    visible.insert(visible.end(), v.begin(), v.end());
    row_begin.push_back(static_cast<std::int32_t>(visible.size()));
    lengths.push_back(p.length(b));
    max_rows = std::max(max_rows, static_cast<int>(v.size()));
  }

  int sms = 0;
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "attributes");
  const int tiles = (max_rows * p.heads + 63) / 64;
  const int num_parts = options.num_parts > 0 ? options.num_parts : std::max(1, sms / tiles);
  std::vector<std::int32_t> parts(static_cast<std::size_t>(num_parts) * kPartFields);
  std::vector<std::int32_t> num_splits(lengths.size() + 1);
  ScheduleParams schedule;
  schedule.overhead_blocks = options.overhead_blocks;
  build_schedule(parts, num_splits, lengths, ScheduleDialect::kBlocks, schedule);

  const std::int64_t out_head_stride = kL + options.out_gap;
  const std::int64_t out_row_stride = (p.heads + kPadHeads) * out_head_stride;
  const std::vector<std::uint16_t> out_canary(static_cast<std::size_t>((rows + 1) * out_row_stride),
                                              kCanary);
  const std::vector<float> lse_canary(static_cast<std::size_t>((rows + 1) * (p.heads + kPadHeads)),
                                      12345.0F);
  const std::int64_t max_splits = decode_max_splits(p.requests(), num_parts);
  // NaN partials: a split that nobody wrote must not be read.
  const std::vector<std::uint32_t> partial_poison(
      static_cast<std::size_t>(max_splits * max_rows * p.heads), 0x7FC00000U);

  const DeviceBytes d_cache(cache);
  const DeviceBytes d_table(table);
  const DeviceBytes d_query(query);
  const DeviceBytes d_row_begin(row_begin);
  const DeviceBytes d_visible(visible);
  const DeviceBytes d_lengths(lengths);
  const DeviceBytes d_parts(parts);
  const DeviceBytes d_splits(num_splits);
  const DeviceBytes d_out(out_canary);
  const DeviceBytes d_lse(lse_canary);
  const DeviceBytes d_partial_lse(partial_poison);
  const std::size_t partial_bytes = partial_poison.size() * kL * (options.f16_partials ? 2 : 4);
  const DeviceBytes d_partial_out(partial_bytes);
  check_cuda(cudaMemset(d_partial_out.as<void>(), 0xFF, partial_bytes), "cudaMemset");

  DecodeParams params{};
  params.query = d_query.as<void>();
  params.query_dtype = p.dtype;
  params.query_row_stride = row_stride;
  params.query_head_stride = head_stride;
  params.cache = d_cache.as<void>();
  params.cache_dtype = p.dtype;
  params.cache_page_stride = page_stride;
  params.cache_row_stride = kD;
  params.page_size = p.page_size;
  params.num_pages = pool;
  params.block_table = d_table.as<std::int32_t>();
  params.block_table_stride = static_cast<std::int64_t>(columns);
  params.block_table_columns = static_cast<std::int32_t>(columns);
  params.row_begin = d_row_begin.as<std::int32_t>();
  params.visible = d_visible.as<std::int32_t>();
  params.lengths = d_lengths.as<std::int32_t>();
  params.num_requests = p.requests();
  params.num_rows = rows;
  params.num_heads = p.heads;
  params.max_rows_per_request = max_rows;
  params.parts = d_parts.as<DecodePart>();
  params.num_splits = d_splits.as<std::int32_t>();
  params.num_parts = num_parts;
  params.logit_scale = p.logit_scale;
  params.output_scale = p.output_scale;
  params.out = d_out.as<void>();
  params.out_row_stride = out_row_stride;
  params.out_head_stride = out_head_stride;
  params.lse = d_lse.as<float>();
  params.lse_row_stride = p.heads + kPadHeads;
  params.lse_head_stride = 1;
  params.partial_out = d_partial_out.as<void>();
  params.f16_partials = options.f16_partials;
  params.partial_lse = d_partial_lse.as<float>();

  // Copies and fills of device memory may still be under way, and no other stream waits for them.
  check_cuda(cudaDeviceSynchronize(), "uploads");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaGraphExec_t graph_exec = nullptr;
  if (options.through_graph) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    launch(params, stream);
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&graph_exec, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  DecodeResult result;
  std::vector<std::uint16_t> first_out;
  std::vector<float> first_lse;
  for (int i = 0; i < options.repeats; ++i) {
    if (options.through_graph) {
      check_cuda(cudaGraphLaunch(graph_exec, stream), "cudaGraphLaunch");
    } else {
      launch(params, stream);
    }
    check_cuda(cudaStreamSynchronize(stream), "decode");
    const auto out = d_out.read<std::uint16_t>();
    const auto lse = d_lse.read<float>();
    if (i == 0) {
      first_out = out;
      first_lse = lse;
    } else if (out != first_out ||
               !std::equal(lse.begin(), lse.end(), first_lse.begin(), first_lse.end())) {
      result.canaries_intact = false;
    }
  }
  if (graph_exec != nullptr) check_cuda(cudaGraphExecDestroy(graph_exec), "cudaGraphExecDestroy");
  check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");

  for (int t = 0; t <= rows; ++t) {
    for (int h = 0; h < p.heads + kPadHeads; ++h) {
      const std::uint16_t* at = first_out.data() + t * out_row_stride + h * out_head_stride;
      const bool inside = t < rows && h < p.heads;
      for (int d = 0; d < out_head_stride; ++d) {
        if (inside && d < kL) {
          result.out.push_back(BFloat16::from_bits(at[d]).to_float());
        } else if (at[d] != kCanary) {
          result.canaries_intact = false;
        }
      }
      const float lse = first_lse[static_cast<std::size_t>(t) * (p.heads + kPadHeads) + h];
      if (inside) {
        result.lse.push_back(lse);
      } else if (lse != 12345.0F) {
        result.canaries_intact = false;
      }
    }
  }
  return result;
}

double relative_rms(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  const double ratio = norm > 0.0 ? std::sqrt(error / norm) : std::sqrt(error);
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

}  // namespace mladcp
