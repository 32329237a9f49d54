// The Hopper decode kernels and the merge of their splits, against FP64 on the codes they saw.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "kernels/decode/combine/combine.h"
#include "kernels/decode/sm90_bf16/decode.h"
#include "kernels/decode/sm90_fp8/decode.h"
#include "kernels/device/cuda_error.h"
#include "tests/kernels/decode_problem.h"
#include "tests/kernels/late_copies.h"

namespace mladcp {
namespace {

constexpr int kL = kDecodeLatentRank;

// Rounding errors of the formats, as standard deviations relative to the value: a mantissa of m
// bits rounds within half a unit 2^-m of a binade, uniformly.
double rounding_rms(int mantissa_bits) {
  return std::ldexp(1.0, -mantissa_bits - 1) / std::sqrt(3.0);
}

// Zero-mean values under independently rounded weights: the relative RMS error of a sum is that of
// one weight. S adds the truncations of an e4m3 wgmma chain, at most 2^-13 of its largest term a
// step.
double expected_rms(int heads_times_rows) {
  const double weight = heads_times_rows <= 32 ? rounding_rms(10) : rounding_rms(3);
  return weight + rounding_rms(7) + std::ldexp(18.0, -13);
}

float hashed(std::uint64_t a, std::uint64_t b, std::uint64_t c) {  // in [-1, 1)
  std::uint64_t x = a * 0x9E3779B97F4A7C15U + b * 0xC2B2AE3D27D4EB4FU + c * 0x165667B19E3779F9U + 1;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBU;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9U;
  x ^= x >> 32;
  return static_cast<float>(static_cast<std::int32_t>(x & 0xFFFFFFFFU)) * 0x1p-31F;
}

float normal(std::uint64_t a, std::uint64_t b, std::uint64_t c) {  // mean 0, sd 1
  return (hashed(a, b, c) + hashed(a + 77, b, c) + hashed(a, b + 77, c));
}

void launch(const DecodeParams& params, cudaStream_t stream) {
  launch_sm90_fp8_decode(params, stream);
  launch_decode_combine(params, stream);
}

void launch_bf16(const DecodeParams& params, cudaStream_t stream) {
  launch_sm90_bf16_decode(params, stream);
  launch_decode_combine(params, stream);
}

// Runs the kernel of the problem's type.
DecodeResult run(const DecodeProblem& p, RunOptions options = {}) {
  options.f16_partials = p.dtype == DType::kE4M3;
  return run_decode(p, options.f16_partials ? launch : launch_bf16, options);
}

class Sm90DecodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major != 9) GTEST_SKIP() << "compute capability " << major << ".x, needs 9.0 (Hopper)";
  }
};

// Rows of a request that differ arbitrarily, with the edges of pages and empty rows among them.
std::vector<std::vector<int>> ragged(int q_len) {
  std::vector<std::vector<int>> visible;
  const int lengths[] = {0, 1, 63, 64, 65, 128, 777, 1500, 2, 191};
  for (int i = 0; i < 10; ++i) {
    std::vector<int> rows;
    const int n = 1 + (i + q_len - 1) % q_len;
    for (int j = 0; j < n; ++j) {
      const int v = lengths[i] - (j * 37) % 90;
      rows.push_back(j == n / 2 ? lengths[i] : v > 0 ? v : 0);
    }
    visible.push_back(rows);
  }
  return visible;
}

std::string label(int heads, int q_len, int page, int parts) {
  return "heads " + std::to_string(heads) + ", q_len " + std::to_string(q_len) + ", page " +
         std::to_string(page) + ", parts " + std::to_string(parts);
}

// Every row attends to one key only, whose latent it must return exactly: three one-hots of
// amplitude 32 in the rope part make a code of the key, a match scores 3072, the nearest miss 2048.
void expect_the_one_key(DType dtype) {
  for (const int heads : {1, 8, 16, 48, 64, 96, 128}) {
    for (const int q_len : {1, 2, 3, 4}) {
      for (const int page : {64, 128}) {
        for (const int parts : {1, 7, 0}) {
          if (page == 128 && (parts != 7 || q_len == 3)) continue;
          SCOPED_TRACE(label(heads, q_len, page, parts));
          DecodeProblem p;
          p.dtype = dtype;
          p.heads = heads;
          p.page_size = page;
          p.visible = ragged(q_len);
          p.give_own_pages();
          p.logit_scale = 112.0F / 1024.0F;
          p.output_scale = 0.5F;
          std::vector<std::pair<int, int>> owner;  // row t -> request, visible
          for (int b = 0; b < p.requests(); ++b) {
            for (int v : p.visible[static_cast<std::size_t>(b)]) owner.emplace_back(b, v);
          }
          const auto code = [](int k, int d) {
            return d == k % 21 || d == 21 + (k / 21) % 21 || d == 42 + k / 441 ? 32.0F : 0.0F;
          };
          const auto target = [&](int t, int h) {
            const int v = owner[static_cast<std::size_t>(t)].second;
            return v == 0 ? 0 : (h * 101 + t * 13 + (h % 3 == 0 ? v - 1 : 0)) % v;
          };
          std::vector<int> first_key(static_cast<std::size_t>(p.content_pages));
          for (const auto& entries : p.table) {
            for (std::size_t i = 0; i < entries.size(); ++i) {
              first_key[static_cast<std::size_t>(entries[i])] = static_cast<int>(i) * page;
            }
          }
          p.key = [&](int content, int row, int d) {
            if (d >= kL) return code(first_key[static_cast<std::size_t>(content)] + row, d - kL);
            return normal(static_cast<std::uint64_t>(content), static_cast<std::uint64_t>(row),
                          static_cast<std::uint64_t>(d));
          };
          p.query = [&](int t, int h, int d) { return d < kL ? 0.0F : code(target(t, h), d - kL); };
          RunOptions options;
          options.num_parts = parts;
          options.out_gap = q_len == 2 ? 2 : 8;
          const DecodeResult r = run(p, options);
          EXPECT_TRUE(r.canaries_intact);
          int wrong = 0;
          for (int t = 0; t < p.rows(); ++t) {
            const auto [b, v] = owner[static_cast<std::size_t>(t)];
            for (int h = 0; h < heads; ++h) {
              const std::size_t row = static_cast<std::size_t>(t) * heads + h;
              const int k = target(t, h);
              // The nearest miss lies 112 below: its weight is 0 in fp32.
              const float lse = v == 0 ? -INFINITY : 336.0F;
              if (!(r.lse[row] == lse || std::fabs(r.lse[row] - lse) < 1e-4F) && wrong++ < 5) {
                ADD_FAILURE() << "lse row " << t << " head " << h << " visible " << v << ": "
                              << r.lse[row];
              }
              for (int d = 0; d < kL; ++d) {
                float want = 0.0F;
                if (v > 0) {
                  const int content =
                      p.table[static_cast<std::size_t>(b)][static_cast<std::size_t>(k / page)];
                  const float value = p.key(content, k % page, d);
                  want = 0.5F * (dtype == DType::kE4M3 ? Float8E4M3::from_float(value).to_float()
                                                       : BFloat16::from_float(value).to_float());
                }
                const float got = r.out[row * kL + static_cast<std::size_t>(d)];
                if (got != want && wrong++ < 5) {
                  ADD_FAILURE() << "row " << t << " head " << h << " dim " << d << " key " << k
                                << " of " << v << ": got " << got << " want " << want;
                }
              }
            }
          }
          EXPECT_EQ(wrong, 0);
          if (wrong > 0) return;
        }
      }
    }
  }
}

TEST_F(Sm90DecodeTest, RowReturnsExactlyTheOneKeyItMatches) { expect_the_one_key(DType::kE4M3); }
TEST_F(Sm90DecodeTest, Bf16RowReturnsExactlyTheOneKeyItMatches) {
  expect_the_one_key(DType::kBF16);
}

DecodeProblem random_problem(int heads, int q_len) {
  DecodeProblem p;
  p.heads = heads;
  p.visible = ragged(q_len);
  p.give_own_pages();
  p.key = [](int page, int row, int d) {
    return normal(static_cast<std::uint64_t>(page) + 1000, static_cast<std::uint64_t>(row),
                  static_cast<std::uint64_t>(d));
  };
  p.query = [](int t, int h, int d) {
    return normal(static_cast<std::uint64_t>(t) + 5000, static_cast<std::uint64_t>(h),
                  static_cast<std::uint64_t>(d));
  };
  return p;
}

TEST_F(Sm90DecodeTest, AgreesWithFp64OnZeroMeanData) {
  for (const int heads : {1, 8, 16, 32, 48, 64, 96, 128}) {
    for (const int q_len : {1, 2, 3}) {
      if (heads * q_len > 256) continue;
      const DecodeProblem p = random_problem(heads, q_len);
      const DecodeReference want = reference_decode(p);
      for (const int parts : {1, 13, 0}) {
        SCOPED_TRACE(label(heads, q_len, p.page_size, parts));
        RunOptions options;
        options.num_parts = parts;
        const DecodeResult got = run(p, options);
        EXPECT_TRUE(got.canaries_intact);
        const double rms = relative_rms(got.out, want.out);
        EXPECT_LE(rms, expected_rms(heads * q_len));
        double worst = 0.0;
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          if (std::isinf(want.lse[i])) {
            EXPECT_EQ(got.lse[i], -INFINITY) << i;
          } else {
            worst = std::max(worst, std::fabs(got.lse[i] - want.lse[i]));
          }
        }
        // |s| stays below 5 * 24 before scaling; 18 steps cut it at 2^-13 of that.
        EXPECT_LE(worst, std::ldexp(18.0 * 5.0, -13)) << "lse";
        std::printf("  %-45s rms %.4f%% of %.4f%%, lse %.2e\n",
                    label(heads, q_len, p.page_size, parts).c_str(), 100 * rms,
                    100 * expected_rms(heads * q_len), worst);
      }
    }
  }
}

// P is rounded to 8 bits, logits and sums keep 24.
TEST_F(Sm90DecodeTest, Bf16AgreesWithFp64OnZeroMeanData) {
  for (const int heads : {1, 16, 48, 64, 128}) {
    for (const int q_len : {1, 3}) {
      DecodeProblem p = random_problem(heads, q_len);
      p.dtype = DType::kBF16;
      const DecodeReference want = reference_decode(p);
      for (const int parts : {1, 13, 0}) {
        SCOPED_TRACE(label(heads, q_len, p.page_size, parts));
        RunOptions options;
        options.num_parts = parts;
        const DecodeResult got = run(p, options);
        EXPECT_TRUE(got.canaries_intact);
        const double rms = relative_rms(got.out, want.out);
        EXPECT_LE(rms, rounding_rms(7) + rounding_rms(7));
        double worst = 0.0;
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          if (std::isinf(want.lse[i])) {
            EXPECT_EQ(got.lse[i], -INFINITY) << i;
          } else {
            worst = std::max(worst, std::fabs(got.lse[i] - want.lse[i]));
          }
        }
        EXPECT_LE(worst, 1e-4) << "lse";
        std::printf("  bf16 %-40s rms %.4f%%, lse %.2e\n",
                    label(heads, q_len, p.page_size, parts).c_str(), 100 * rms, worst);
      }
    }
  }
}

TEST_F(Sm90DecodeTest, RepeatsBitwiseAndInAGraph) {
  for (const int heads : {16, 24, 128, -128}) {  // negative: bf16
    for (const int parts : {0, 1}) {
      SCOPED_TRACE(label(heads, 2, 64, parts));
      DecodeProblem p = random_problem(std::abs(heads), 2);
      if (heads < 0) p.dtype = DType::kBF16;
      RunOptions options;
      options.num_parts = parts;
      options.repeats = 20;
      const DecodeResult direct = run(p, options);
      EXPECT_TRUE(direct.canaries_intact);
      options.through_graph = true;
      const DecodeResult graph = run(p, options);
      EXPECT_TRUE(graph.canaries_intact);
      EXPECT_EQ(direct.out, graph.out);
      EXPECT_EQ(direct.lse, graph.lse);
    }
  }
}

// `params` with `idle` parts without work behind its own, and the least time of some launches of
// that: others may be using the card.
class WithIdleParts {
 public:
  explicit WithIdleParts(int idle) : idle_(idle) {}
  ~WithIdleParts() { cudaFree(parts_); }
  WithIdleParts(const WithIdleParts&) = delete;
  WithIdleParts& operator=(const WithIdleParts&) = delete;

  void launch(DecodeParams params, cudaStream_t stream) {
    constexpr DecodePart kIdle = {-1, 0, -1, 0, 0, {}};
    std::vector<DecodePart> parts(static_cast<std::size_t>(params.num_parts), kIdle);
    check_cuda(cudaMemcpy(parts.data(), params.parts, parts.size() * sizeof(DecodePart),
                          cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    parts.resize(parts.size() + static_cast<std::size_t>(idle_), kIdle);
    check_cuda(cudaMalloc(&parts_, parts.size() * sizeof(DecodePart)), "cudaMalloc");
    check_cuda(
        cudaMemcpy(parts_, parts.data(), parts.size() * sizeof(DecodePart), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    params.parts = static_cast<const DecodePart*>(parts_);
    params.num_parts += idle_;
    mladcp::launch(params, stream);  // loads the code
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end), "cudaEventCreate");
    for (int i = 0; i < 9; ++i) {
      check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
      mladcp::launch(params, stream);
      check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end), "decode");
      float took = 0.0F;
      check_cuda(cudaEventElapsedTime(&took, begin, end), "cudaEventElapsedTime");
      milliseconds = i == 0 ? took : std::min(milliseconds, took);
    }
    check_cuda(cudaEventDestroy(begin), "cudaEventDestroy");
    check_cuda(cudaEventDestroy(end), "cudaEventDestroy");
  }

  float milliseconds = 0.0F;

 private:
  int idle_;
  void* parts_ = nullptr;
};

// Pages of a part are asked for by the clock: whoever else works, it costs only time, and little.
TEST_F(Sm90DecodeTest, PaceHoldsNobodyUp) {
  for (const int heads : {16, 32, 64}) {
    DecodeProblem p = random_problem(heads, 1);
    // Twelve parts of one request of 24 pages each.
    p.visible.assign(12, {24 * 64});
    p.give_own_pages();
    RunOptions options;
    options.num_parts = 12;
    options.overhead_blocks = 0;
    const DecodeResult want = run(p, options);
    for (const int idle : {0, 1, 31, 32, 300}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + ", idle parts " + std::to_string(idle));
      WithIdleParts with_idle(idle);
      const DecodeResult got = run_decode(
          p, [&](const DecodeParams& params, cudaStream_t s) { with_idle.launch(params, s); },
          options);
      EXPECT_TRUE(got.canaries_intact);
      EXPECT_EQ(got.out, want.out);
      EXPECT_EQ(got.lse, want.lse);
      EXPECT_LT(with_idle.milliseconds, 0.3F);
    }
  }
}

// Two requests of the same pages, whose rows of the block table are one.
TEST_F(Sm90DecodeTest, StrideOfTheBlockTableIsFree) {
  for (const DType dtype : {DType::kE4M3, DType::kBF16}) {
    DecodeProblem p = random_problem(16, 1);
    p.dtype = dtype;
    p.visible = {{1500}, {1500}};
    p.give_own_pages();
    p.table[1] = p.table[0];
    const DecodeResult want = run(p);
    RunOptions options;
    options.f16_partials = dtype == DType::kE4M3;
    const DecodeResult got = run_decode(
        p,
        [&](DecodeParams params, cudaStream_t stream) {
          params.block_table_stride = 0;
          (dtype == DType::kE4M3 ? launch : launch_bf16)(params, stream);
        },
        options);
    EXPECT_EQ(got.out, want.out);
    EXPECT_EQ(got.lse, want.lse);
  }
}

TEST_F(Sm90DecodeTest, PartsNeedNotRunTogether) {
  DecodeProblem p = random_problem(16, 1);
  p.visible.assign(300, {2 * 64});
  p.give_own_pages();
  RunOptions options;
  options.overhead_blocks = 0;
  options.num_parts = 1;
  const DecodeResult one_after_the_other = run(p, options);
  options.num_parts = 300;  // more than there are multiprocessors
  const DecodeResult at_once = run(p, options);
  EXPECT_EQ(at_once.out, one_after_the_other.out);
  EXPECT_EQ(at_once.lse, one_after_the_other.lse);
}

// Everything that says where a step's pages lie, written by the kernel just before the decode,
// which lets it start first: until then it sees `stale` in every word.
class LateSchedule {
 public:
  explicit LateSchedule(std::uint32_t stale) : stale_(stale) {}
  ~LateSchedule() {
    for (const LateCopy& copy : copies_) cudaFree(const_cast<void*>(copy.from));
  }

  void launch(const DecodeParams& p, cudaStream_t stream) {
    if (copies_.empty()) {
      const auto requests = static_cast<std::size_t>(p.num_requests);
      save(p.parts, static_cast<std::size_t>(p.num_parts) * sizeof(DecodePart));
      save(p.num_splits, (requests + 1) * 4);
      save(p.row_begin, (requests + 1) * 4);
      save(p.lengths, requests * 4);
      save(p.visible, static_cast<std::size_t>(p.num_rows) * 4);
      save(p.block_table, requests * static_cast<std::size_t>(p.block_table_stride) * 4);
    }
    for (const LateCopy& copy : copies_) {
      const std::vector<std::uint32_t> words(copy.bytes / 4, stale_);
      check_cuda(cudaMemcpyAsync(copy.to, words.data(), copy.bytes, cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync");
    }
    launch_late_copies(copies_, stream);
    (p.query_dtype == DType::kE4M3 ? mladcp::launch : launch_bf16)(p, stream);
  }

 private:
  void save(const void* data, std::size_t bytes) {
    void* copy = nullptr;
    check_cuda(cudaMalloc(&copy, bytes), "cudaMalloc");
    copies_.push_back({const_cast<void*>(data), copy, bytes});
    check_cuda(cudaMemcpy(copy, data, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpy");
    check_cuda(cudaDeviceSynchronize(), "copy");
  }

  std::uint32_t stale_;
  std::vector<LateCopy> copies_;
};

TEST_F(Sm90DecodeTest, ScheduleMayBeWrittenByTheKernelBefore) {
  struct Shape {
    int heads;
    DType dtype;
  };
  for (const auto& [heads, dtype] : {Shape{16, DType::kE4M3}, Shape{128, DType::kE4M3},
                                     Shape{16, DType::kBF16}, Shape{64, DType::kBF16}}) {
    DecodeProblem p = random_problem(heads, 2);
    p.dtype = dtype;
    RunOptions options;
    options.f16_partials = dtype == DType::kE4M3;
    const DecodeResult want = run(p, options);
    // 0x7FFFFFF0: a block to which no lane's number may be added.
    for (const std::uint32_t stale : {0x0U, 0x01010101U, 0x7FFFFFF0U, 0xFFFFFFFFU}) {
      SCOPED_TRACE(std::string(name(dtype)) + ", heads " + std::to_string(heads) + ", stale " +
                   std::to_string(stale));
      LateSchedule late(stale);
      options.repeats = 3;
      const DecodeResult got = run_decode(
          p, [&](const DecodeParams& params, cudaStream_t s) { late.launch(params, s); }, options);
      EXPECT_TRUE(got.canaries_intact);
      EXPECT_EQ(got.out, want.out);
      EXPECT_EQ(got.lse, want.lse);
    }
  }
}

// Chains far longer than memory: 63 content pages and one of its own for the sink, again and again.
DecodeProblem long_problem(int heads, int keys) {
  DecodeProblem p;
  p.heads = heads;
  p.visible = {{keys}};
  const int pages = keys / 64;
  p.content_pages = std::min(pages, 64);
  p.table.emplace_back();
  for (int i = 0; i < pages; ++i)
    p.table[0].push_back(i == pages / 3 ? 0 : pages == 1 ? 0 : 1 + i % (p.content_pages - 1));
  p.query = [](int t, int h, int d) {
    return normal(static_cast<std::uint64_t>(t) + 5000, static_cast<std::uint64_t>(h),
                  static_cast<std::uint64_t>(d));
  };
  return p;
}

const int kChains[] = {1024, 16384, 131072, 1048576};

TEST_F(Sm90DecodeTest, ConstantLatentsComeBackExactlyAtAnyLength) {
  for (const int heads : {16, 32, 64, 128}) {
    for (const int keys : kChains) {
      for (const int parts : {1, 0}) {
        SCOPED_TRACE(label(heads, 1, 64, parts) + ", keys " + std::to_string(keys));
        DecodeProblem p = long_problem(heads, keys);
        p.key = [](int, int, int d) { return d < kL ? 0.8125F : 0.0F; };
        p.query = [](int, int h, int d) {
          return d < kL ? 0.0F
                        : hashed(9, static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(d));
        };
        RunOptions options;
        options.num_parts = parts;
        const DecodeResult r = run(p, options);
        float worst = 0.0F;
        for (const float x : r.out) worst = std::max(worst, std::fabs(x - 0.8125F));
        EXPECT_EQ(worst, 0.0F);
        float lse = 0.0F;
        for (const float x : r.lse)
          lse = std::max(lse, std::fabs(x - std::log(static_cast<float>(keys))));
        EXPECT_LE(lse, 1e-5F);
      }
    }
  }
}

// Error as a share of the norm of the reference.
void expect_close(const DecodeProblem& p, const char* what, int heads, int keys) {
  const DecodeReference want = reference_decode(p);
  for (const int parts : {1, 0}) {
    RunOptions options;
    options.num_parts = parts;
    const DecodeResult got = run(p, options);
    const double rms = relative_rms(got.out, want.out);
    double lse = 0.0;
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      lse = std::max(lse, std::fabs(got.lse[i] - want.lse[i]));
    }
    std::printf("  %-12s heads %3d keys %7d parts %d: error %.4f%%, lse %.2e\n", what, heads, keys,
                parts, 100 * rms, lse);
    EXPECT_LE(rms, 0.01) << what << " heads " << heads << " keys " << keys << " parts " << parts;
  }
}

TEST_F(Sm90DecodeTest, ShiftedLatentsKeepTheirMean) {
  for (const int heads : {16, 64}) {
    for (const int keys : kChains) {
      DecodeProblem p = long_problem(heads, keys);
      p.key = [](int page, int row, int d) {
        const float x = normal(static_cast<std::uint64_t>(page), static_cast<std::uint64_t>(row),
                               static_cast<std::uint64_t>(d));
        return d < kL ? 0.5F * x + hashed(3, 3, static_cast<std::uint64_t>(d)) * 1.0F +
                            (d % 2 ? 1.0F : -1.0F)
                      : x;
      };
      p.query = [](int, int h, int d) {
        return d < kL ? 0.0F
                      : normal(11, static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(d));
      };
      p.logit_scale = 1.0F / 8.0F;
      expect_close(p, "shifted", heads, keys);
    }
  }
}

// One key whose logit lies `gap` above the mean of a crowd with logits of standard deviation 1;
// crowd and sink have different means.
TEST_F(Sm90DecodeTest, SinkDoesNotFlushTheCrowd) {
  for (const int heads : {16, 64}) {
    for (const float gap : {8.0F, 10.0F}) {
      for (const int keys : kChains) {
        DecodeProblem p = long_problem(heads, keys);
        p.key = [gap](int page, int row, int d) {
          const float x = normal(static_cast<std::uint64_t>(page) + 50,
                                 static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(d));
          const bool sink = page == 0 && row == 17;
          if (d < kL) return sink ? 0.25F : 1.0F + 0.25F * x;
          if (d == kL) return sink ? gap * 8.0F : 0.0F;
          return sink ? 0.0F : x;
        };
        p.query = [](int, int h, int d) {
          if (d < kL) return 0.0F;
          return d == kL ? 1.0F
                         : normal(13, static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(d));
        };
        p.logit_scale = 1.0F / 8.0F;
        expect_close(p, gap == 8.0F ? "sink +8" : "sink +10", heads, keys);
      }
    }
  }
}

// Two tiles of rows are a pair that trades weights page by page. One that has rows hidden on every
// page falls behind, so that its partner waits or is ahead; one may have few rows or none.
TEST_F(Sm90DecodeTest, Bf16TilesOfAPairMaySeeDifferentKeys) {
  struct Case {
    int heads;
    std::vector<std::vector<int>> visible;
  };
  const Case cases[] = {{64, {{64, 8192}}},
                        {64, {{8192, 0}, {1}, {8192}, {65, 4096}}},
                        {128, {{8192, 70}, {4096}, {8192, 0}}},
                        {96, {{8192}, {100}, {64}}},
                        {128, {{8192, 4096, 1, 0}, {0}, {8192}, {640, 8192, 64}}}};
  for (const Case& c : cases) {
    DecodeProblem p = long_problem(c.heads, 8192);
    p.dtype = DType::kBF16;
    p.visible = c.visible;
    p.table.resize(c.visible.size(), p.table[0]);
    p.key = [](int page, int row, int d) {
      return normal(static_cast<std::uint64_t>(page) + 50, static_cast<std::uint64_t>(row),
                    static_cast<std::uint64_t>(d));
    };
    const DecodeReference want = reference_decode(p);
    for (const int parts : {1, 0, 200}) {
      SCOPED_TRACE(label(c.heads, static_cast<int>(c.visible[0].size()), 64, parts));
      RunOptions options;
      options.num_parts = parts;
      options.repeats = 5;
      const DecodeResult got = run(p, options);
      EXPECT_TRUE(got.canaries_intact);
      EXPECT_LE(relative_rms(got.out, want.out), rounding_rms(7) + rounding_rms(7));
    }
  }
}

TEST_F(Sm90DecodeTest, RefusesWhatItCannotRead) {
  DecodeParams p{};
  p.query_dtype = DType::kBF16;
  p.cache_dtype = DType::kE4M3;
  p.logit_scale = 1.0F;
  p.page_size = 64;
  EXPECT_NE(sm90_fp8_decode_refusal(p), "");
  p.query_dtype = DType::kE4M3;
  EXPECT_NE(sm90_fp8_decode_refusal(p).find("f16_partials"), std::string::npos);
  p.f16_partials = true;
  EXPECT_EQ(sm90_fp8_decode_refusal(p), "");
  p.page_size = 32;
  EXPECT_THROW(launch_sm90_fp8_decode(p, nullptr), Unsupported);
  p.page_size = 64;
  p.query_head_stride = 577;
  EXPECT_NE(sm90_fp8_decode_refusal(p).find("577"), std::string::npos);
}

}  // namespace
}  // namespace mladcp
