// Whole prefill problems for the tests: prompts, sharded and poisoned caches, all ranks run through
// an in-process group, and the verdict against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/in_process_group.h"
#include "core/conversions.h"
#include "core/prefill.h"
#include "reference/cpu_ops.h"
#include "reference/prefill_bounds.h"
#include "reference/prefill_oracle.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {

struct PrefillShape {
  MlaDims dims{40, 8, 12, 10};
  std::int64_t local_heads = 3;  // H; the group has N * H
  KvSharding sharding;
  std::int64_t page_size = 16;
  std::int64_t workspace_rows = 0;
  DType kv_dtype = DType::kE4M3;
  float k_scale = 0.02F;
  float softmax_scale = 0.25F;
  std::vector<PrefillRequest> requests;
  std::uint64_t seed = 1;
};

inline ParallelConfig config_of(const PrefillShape& shape) {
  ParallelConfig config;
  config.tp = config.dcp = shape.sharding.world_size;
  config.heads = shape.local_heads * config.dcp;
  config.interleave = shape.sharding.interleave;
  config.page_size = shape.page_size;
  config.kv_dtype = shape.kv_dtype;
  config.k_scale = shape.k_scale;
  return config;
}

// Weights and prompts: what the tokens of every request are, whatever step they come in.
struct PrefillModel {
  Tensor w_uk;                  // [A, P, L] bf16
  Tensor w_uv;                  // [A, L, Vd] bf16
  std::vector<Tensor> rows;     // per request [tokens, D] bf16
  std::vector<Tensor> queries;  // per request [tokens, A, P + R] bf16
};

inline PrefillModel random_model(const PrefillShape& shape) {
  std::int64_t tokens = 200;  // of a request over all its turns
  for (const PrefillRequest& request : shape.requests) {
    tokens = std::max(tokens, request.context + request.new_tokens);
  }
  Numbers numbers(shape.seed);
  const MlaDims& d = shape.dims;
  const std::int64_t heads = shape.local_heads * shape.sharding.world_size;
  PrefillModel model;
  model.w_uk = random_tensor(DType::kBF16, {heads, d.nope, d.latent}, "w_uk", numbers, 0.05F, 0.2F);
  model.w_uv =
      random_tensor(DType::kBF16, {heads, d.latent, d.value}, "w_uv", numbers, 0.05F, 0.2F);
  for (std::size_t b = 0; b < shape.requests.size(); ++b) {
    model.rows.push_back(random_tensor(DType::kBF16, {tokens, d.row()}, "rows", numbers, 0.5F));
    model.queries.push_back(
        random_tensor(DType::kBF16, {tokens, heads, d.nope + d.rope}, "queries", numbers, 0.1F));
  }
  return model;
}

// Row as the cache gives it back: through e4m3, or unchanged.
inline void through_cache(std::span<BFloat16> row, DType kv_dtype, float scale) {
  if (kv_dtype == DType::kBF16) return;
  std::vector<Float8E4M3> codes(row.size());
  quantize(std::span<Float8E4M3>(codes), std::span<const BFloat16>(row), scale);
  dequantize(row, std::span<const Float8E4M3>(codes), scale);
}

class PrefillWorld {
 public:
  explicit PrefillWorld(const PrefillShape& shape) : PrefillWorld(shape, random_model(shape)) {}

  PrefillWorld(const PrefillShape& shape, PrefillModel model)
      : shape_(shape), model_(std::move(model)) {
    std::int64_t longest = 0;
    for (const PrefillRequest& request : shape.requests) {
      longest = std::max(longest, request.context + request.new_tokens);
    }
    // Room for later turns: a table wider than the first step needs.
    table_.columns = table_columns(shape.sharding, longest, shape.page_size) + 4;
    pages_ = table_.columns * static_cast<std::int64_t>(shape.requests.size()) + 1;
    table_.pages.resize(static_cast<std::size_t>(pages_));
    std::iota(table_.pages.begin(), table_.pages.end(), 0);
    Numbers numbers(shape.seed + 1);
    std::shuffle(table_.pages.begin(), table_.pages.end(), numbers.engine());
    table_.pages.pop_back();
    fill_caches();
    begin_step(shape.requests);
  }

  // The queries and rows of a step: those of the requests' tokens at the step's positions.
  void begin_step(const std::vector<PrefillRequest>& requests) {
    requests_ = requests;
    const MlaDims& d = shape_.dims;
    std::int64_t rows = 0;
    std::int64_t contexts = 0;
    for (const PrefillRequest& request : requests) {
      rows += request.new_tokens;
      contexts += request.context;
    }
    query_ = host_tensor(DType::kBF16, {rows, model_.w_uk.shape()[0], d.nope + d.rope}, "query");
    new_rows_ = host_tensor(DType::kBF16, {rows, d.row()}, "new rows");
    context_rows_ = host_tensor(DType::kBF16, {contexts, d.row()}, "context rows");
    std::int64_t t = 0;
    std::int64_t c = 0;
    for (std::size_t b = 0; b < requests.size(); ++b) {
      const auto& [context, added] = requests[b];
      copy_rows(context_rows_, c, model_.rows[b], 0, context);
      copy_rows(new_rows_, t, model_.rows[b], context, added);
      copy_rows(query_, t, model_.queries[b], context, added);
      c += context;
      t += added;
    }
    through_cache({context_rows_.as<BFloat16>(), static_cast<std::size_t>(contexts * d.row())},
                  shape_.kv_dtype, shape_.k_scale);
  }

  PrefillProblem problem() const {
    return {requests_, shape_.softmax_scale, query_,     context_rows_,
            new_rows_, model_.w_uk,          model_.w_uv};
  }
  PrefillPlan plan(std::int64_t rank) const {
    return plan_prefill({shape_.sharding, shape_.page_size, shape_.workspace_rows}, {rank, pages_},
                        requests_, table_);
  }
  PrefillLimits limits() const { return {new_rows_.shape()[0], shape_.workspace_rows}; }
  KvCache cache(std::int64_t rank) const {
    return {caches_[static_cast<std::size_t>(rank)], shape_.k_scale};
  }
  PrefillInputs inputs(std::int64_t rank) const {
    const std::int64_t h = shape_.local_heads;
    const TensorView rows = new_rows_;
    return {query_.view().narrow(1, rank * h, h),
            rows.narrow(1, 0, shape_.dims.latent),
            rows.narrow(1, shape_.dims.latent, shape_.dims.rope),
            model_.w_uk.view().narrow(0, rank * h, h),
            model_.w_uv.view().narrow(0, rank * h, h),
            cache(rank)};
  }
  const PrefillShape& shape() const { return shape_; }
  const BlockTable& table() const { return table_; }
  std::int64_t rows() const { return new_rows_.shape()[0]; }

 private:
  static void copy_rows(const TensorView& to, std::int64_t to_begin, const TensorView& from,
                        std::int64_t from_begin, std::int64_t count) {
    host_device().copy_strided(to.narrow(0, to_begin, count), from.narrow(0, from_begin, count),
                               kHostStream);
  }

  // Dealt out position by position; every slot without a token is NaN.
  void fill_caches() {
    const auto& [n, interleave] = shape_.sharding;
    const MlaDims& d = shape_.dims;
    for (std::int64_t r = 0; r < n; ++r) {
      caches_.push_back(host_tensor(shape_.kv_dtype, {pages_, shape_.page_size, d.row()}, "cache"));
      poison(caches_.back());
      for (std::size_t b = 0; b < model_.rows.size(); ++b) {
        std::int64_t local = 0;
        for (std::int64_t p = 0; p < shape_.requests[b].context; ++p) {
          if (p / interleave % n != r) continue;
          const std::int64_t page = table_.row(
              static_cast<std::int64_t>(b))[static_cast<std::size_t>(local / shape_.page_size)];
          store(caches_.back(), page * shape_.page_size + local % shape_.page_size, model_.rows[b],
                p);
          ++local;
        }
      }
    }
  }

  void store(const Tensor& cache, std::int64_t slot, const Tensor& rows, std::int64_t p) const {
    const auto width = static_cast<std::size_t>(shape_.dims.row());
    const std::span<const BFloat16> row(rows.as<BFloat16>() + p * shape_.dims.row(), width);
    if (shape_.kv_dtype == DType::kE4M3) {
      quantize(std::span(cache.as<Float8E4M3>() + slot * shape_.dims.row(), width), row,
               shape_.k_scale);
    } else {
      std::copy(row.begin(), row.end(), cache.as<BFloat16>() + slot * shape_.dims.row());
    }
  }

  PrefillShape shape_;
  PrefillModel model_;
  std::vector<PrefillRequest> requests_;
  std::vector<Tensor> caches_;  // per rank
  BlockTable table_;
  std::int64_t pages_ = 0;
  Tensor query_, new_rows_, context_rows_;
};

// One rank's results, in memory of their own.
struct PrefillResult {
  Tensor output;   // [T, H, Vd] bf16
  Tensor running;  // [T, H, Vd] fp32
  Tensor lse;      // [T, H]
  std::int64_t chunks = 0;
};

inline PrefillResult run_rank(
    const PrefillWorld& world, Collective& collective, int threads = 1,
    const std::function<void(const PrefillWorkspace&, const Ops&)>& step = {}) {
  const ParallelConfig config = config_of(world.shape());
  PrefillWorkspace workspace(host_device(), config, world.shape().dims, world.limits());
  workspace.load(world.plan(collective.rank()), kHostStream);
  CpuOps ops(threads);
  if (step) {
    step(workspace, ops.ops());
  } else {
    prefill(config, world.shape().softmax_scale, world.inputs(collective.rank()), workspace,
            ops.ops(), collective, kHostStream);
  }
  return {copied_to_host(workspace.output(), kHostStream),
          copied_to_host(workspace.running(), kHostStream),
          copied_to_host(workspace.running_lse(), kHostStream), workspace.chunks()};
}

inline std::vector<PrefillResult> run_ranks(const PrefillWorld& world, int threads = 1) {
  const auto n = static_cast<int>(world.shape().sharding.world_size);
  std::vector<PrefillResult> results(static_cast<std::size_t>(n));
  InProcessGroup group(n);
  group.run([&](Collective& collective) {
    results[static_cast<std::size_t>(collective.rank())] = run_rank(world, collective, threads);
  });
  return results;
}

inline std::vector<std::int64_t> rows_up_to(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Fails, with the worst element, when a result lies outside its bound. Returns the share of that
// element's bound that was used.
inline double expect_within(const char* what, const TensorView& got, const Expected& wanted) {
  const Comparison comparison = compare(got, wanted);
  EXPECT_TRUE(comparison.pass()) << what << ": " << comparison;
  return comparison.worst_ratio;
}

// Returns the largest share of a bound that was used.
inline double expect_oracle(const PrefillWorld& world, const std::vector<PrefillResult>& results) {
  const std::int64_t h = world.shape().local_heads;
  const std::vector<std::int64_t> rows = rows_up_to(world.rows());
  double worst = 0.0;
  for (std::size_t r = 0; r < results.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    PrefillFormats formats;
    formats.chunks = results[r].chunks;
    const auto first = static_cast<std::int64_t>(r) * h;
    const ExpectedPrefill rounded = expect_prefill(world.problem(), first, h, rows, formats, 1);
    formats.out_unit = 0.0;
    const ExpectedPrefill fp32 = expect_prefill(world.problem(), first, h, rows, formats, 1);
    worst = std::max({worst, expect_within("output", results[r].output, rounded.out),
                      expect_within("running", results[r].running, fp32.out),
                      expect_within("lse", results[r].lse, fp32.lse)});
  }
  return worst;
}

inline bool same_bits(const PrefillResult& a, const PrefillResult& b) {
  return bytes_of(a.output) == bytes_of(b.output) && bytes_of(a.running) == bytes_of(b.running) &&
         bytes_of(a.lse) == bytes_of(b.lse);
}

}  // namespace mladcp
