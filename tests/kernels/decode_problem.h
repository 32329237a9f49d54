// A decode problem on the host, what FP64 makes of it, and a run of a kernel on it. Everything a
// kernel must not use is poisoned: cache slots no row may see, table entries of unused pages, the
// gaps of the strided query; outputs lie between canaries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/decode/decode_params.h"

namespace mladcp {

struct DecodeProblem {
  DType dtype = DType::kE4M3;  // of query and cache, or kBF16
  int heads = 1;
  int page_size = 64;
  std::vector<std::vector<int>> visible;  // per request, per query row
  float logit_scale = 1.0F / 24.0F;
  float output_scale = 1.0F;

  // Each request's page of local tokens [i * page_size, ..) is content page `table[request][i]`; a
  // content page may serve several times. Filled by give_own_pages, or by hand.
  std::vector<std::vector<int>> table;
  int content_pages = 0;

  // Values before rounding to dtype: key(content page, row in page, dim), query(row t, head, dim).
  std::function<float(int, int, int)> key;
  std::function<float(int, int, int)> query;

  int requests() const { return static_cast<int>(visible.size()); }
  int rows() const;
  int length(int request) const;
  // One content page for every page of every request.
  void give_own_pages();
};

struct DecodeResult {
  std::vector<float> out;  // [T, H, L], bf16 widened
  std::vector<float> lse;  // [T, H]
  bool canaries_intact = true;
};

// FP64 on the rounded values.

struct DecodeReference {
  std::vector<double> out;
  std::vector<double> lse;
};
DecodeReference reference_decode(const DecodeProblem& problem);

using LaunchDecode = std::function<void(const DecodeParams&, cudaStream_t)>;

struct RunOptions {
  int num_parts = 0;  // 0: one a multiprocessor and row tile of 64
  bool f16_partials = true;
  int overhead_blocks = 2;
  int repeats = 1;  // results of all repeats must agree bitwise, else canaries_intact is false
  int out_gap =
      8;  // elements between output rows, even; a multiple of 8 leaves rows aligned to 16 bytes
  bool through_graph = false;  // capture the launches and replay the graph instead
};

DecodeResult run_decode(const DecodeProblem& problem, const LaunchDecode& launch,
                        const RunOptions& options = {});

// sqrt(sum (got - want)^2 / sum want^2) over all elements; infinity when a value is not finite.
double relative_rms(const std::vector<float>& got, const std::vector<double>& want);

}  // namespace mladcp
