// Small decode attention problems: a paged, poisoned, shuffled cache, rows, a schedule, and what
// attention should give, summed in double one key at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/scheduler.h"
#include "reference/cpu_attention_ops.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {

enum class QueryKind { kPair, kTensor };

struct AttentionProblemShape {
  DType query_dtype = DType::kBF16;
  QueryKind query_kind = QueryKind::kTensor;
  DType cache_dtype = DType::kE4M3;
  std::int64_t heads = 3, latent = 40, rope = 8, page = 16;
  // One vector a request: what each of its query rows may see.
  std::vector<std::vector<std::int32_t>> visible = {{200}, {}, {0}, {65, 66, 67}, {1}};
  float softmax_scale = 0.125F, q_scale = 1.0F, k_scale = 1.0F;
  float latent_mean = 0.5F, sigma = 1.0F;
  std::uint64_t seed = 1;

  std::int64_t width() const { return latent + rope; }
};

struct AttentionProblem {
  AttentionProblemShape shape;
  Tensor query;              // [T, H, D]
  Tensor cache_storage;      // [pages, page, D + 3]
  std::vector<Tensor> keys;  // per request [keys, D] in the cache's dtype
  Tensor request, visible, row_begin, lengths, block_table;
  Tensor parts, num_splits;

  std::int64_t rows() const { return query.view().size(0); }
  KvCache cache() const {
    return {cache_storage.view().narrow(2, 1, shape.width()), shape.k_scale};
  }
  DecodeRows plan() const {
    return {request.view(), visible.view(), row_begin.view(), lengths.view(), block_table.view()};
  }
  ScheduleTensors schedule() const { return {parts.view(), num_splits.view()}; }
  DecodeScales scales() const { return {shape.softmax_scale, shape.q_scale}; }
  Query the_query() const {
    if (shape.query_kind == QueryKind::kTensor) return query.view();
    return QueryPair{query.view().narrow(2, 0, shape.latent),
                     query.view().narrow(2, shape.latent, shape.rope)};
  }
};

// num_parts 0: as many as the operations ask for.
inline AttentionProblem make_attention_problem(const AttentionProblemShape& shape,
                                               std::int64_t num_parts = 0) {
  AttentionProblem p;
  p.shape = shape;
  Numbers numbers(shape.seed);
  std::vector<std::int32_t> request, visible, row_begin = {0}, lengths;
  for (std::size_t b = 0; b < shape.visible.size(); ++b) {
    for (const std::int32_t v : shape.visible[b]) {
      request.push_back(static_cast<std::int32_t>(b));
      visible.push_back(v);
    }
    row_begin.push_back(static_cast<std::int32_t>(request.size()));
    const auto& of_request = shape.visible[b];
    lengths.push_back(of_request.empty() ? 0
                                         : *std::max_element(of_request.begin(), of_request.end()));
  }
  const auto rows = static_cast<std::int64_t>(request.size());
  p.query = random_tensor(shape.query_dtype, {rows, shape.heads, shape.width()}, "query", numbers,
                          0.1F, shape.sigma);

  const auto requests = static_cast<std::int64_t>(lengths.size());
  std::int64_t columns = 1, pages = 2;
  for (const std::int32_t length : lengths) {
    const std::int64_t used = (length + shape.page - 1) / shape.page;
    columns = std::max(columns, used + 1);
    pages += used;
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), numbers.engine());
  // Unused entries lead far away, unused rows hold NaN.
  std::vector<std::int32_t> table(static_cast<std::size_t>(requests * columns), 2147480000);
  p.cache_storage = host_tensor(shape.cache_dtype, {pages, shape.page, shape.width() + 3}, "cache");
  poison(p.cache_storage);
  const TensorView rows_of_cache = p.cache().data;
  std::size_t next_page = 0;
  for (std::int64_t b = 0; b < requests; ++b) {
    Tensor keys =
        filled(shape.cache_dtype, {lengths[b], shape.width()}, "keys", [&](std::int64_t i) {
          const bool latent = i % shape.width() < shape.latent;
          return numbers.normal(latent ? shape.latent_mean : -0.2F, shape.sigma);
        });
    for (std::int64_t k = 0; k < lengths[b]; ++k) {
      std::int32_t& page = table[b * columns + k / shape.page];
      if (k % shape.page == 0) page = order[next_page++];
      copy_row(rows_of_cache, offset_of(rows_of_cache, page, k % shape.page), keys,
               offset_of(keys, k));
    }
    p.keys.push_back(std::move(keys));
  }
  p.request = index_tensor(request, "request");
  p.visible = index_tensor(visible, "visible");
  p.row_begin = index_tensor(row_begin, "row_begin");
  p.lengths = index_tensor(lengths, "lengths");
  p.block_table = copied_to_host(
      index_tensor(table, "block_table").view().reshaped({requests, columns}), kHostStream);

  const CpuAttentionOps ops(1);
  if (num_parts == 0) num_parts = ops.num_parts({shape.heads, 1});
  p.parts = host_tensor(DType::kI32, {num_parts, kPartFields}, "parts");
  p.num_splits = host_tensor(DType::kI32, {requests + 1}, "num_splits");
  build_schedule(p.schedule(), p.lengths, ScheduleDialect::kBlocks);
  return p;
}

struct AttentionValues {
  std::vector<double> out;  // [T, H, L]
  std::vector<double> lse;  // [T, H]
};

inline AttentionValues attend_key_by_key(const AttentionProblem& p) {
  const AttentionProblemShape& s = p.shape;
  const std::vector<float> query = values_of(p.query);
  AttentionValues result;
  const double k_scale = s.cache_dtype == DType::kE4M3 ? s.k_scale : 1.0;
  const double scale = static_cast<double>(s.softmax_scale) * k_scale *
                       (s.query_dtype == DType::kE4M3 ? s.q_scale : 1.0);
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    const std::vector<float> keys = values_of(p.keys[p.request.as<std::int32_t>()[t]]);
    const std::int64_t visible = p.visible.as<std::int32_t>()[t];
    for (std::int64_t h = 0; h < s.heads; ++h) {
      std::vector<double> logits(static_cast<std::size_t>(visible), 0.0);
      double max = -std::numeric_limits<double>::infinity();
      for (std::int64_t k = 0; k < visible; ++k) {
        for (std::int64_t d = 0; d < s.width(); ++d) {
          logits[k] += scale * query[(t * s.heads + h) * s.width() + d] * keys[k * s.width() + d];
        }
        max = std::max(max, logits[k]);
      }
      double sum = 0.0;
      for (const double logit : logits) sum += std::exp(logit - max);
      result.lse.push_back(visible == 0 ? max : max + std::log(sum));
      for (std::int64_t l = 0; l < s.latent; ++l) {
        double out = 0.0;
        for (std::int64_t k = 0; k < visible; ++k) {
          out += std::exp(logits[k] - max) / sum * keys[k * s.width() + l] * k_scale;
        }
        result.out.push_back(out);
      }
    }
  }
  return result;
}

struct DecodeResult {
  Tensor out, lse;
};

inline DecodeResult run_decode(const AttentionProblem& p, int threads = 1,
                               DType out_dtype = DType::kBF16) {
  const AttentionProblemShape& s = p.shape;
  DecodeResult result{host_tensor(out_dtype, {p.rows(), s.heads, s.latent}, "out"),
                      host_tensor(DType::kF32, {p.rows(), s.heads}, "lse")};
  poison(result.out);
  poison(result.lse);
  CpuAttentionOps(threads).decode(result.out, result.lse, p.the_query(), p.cache(), p.plan(),
                                  p.schedule(), p.scales(), {}, kHostStream);
  return result;
}

}  // namespace mladcp
