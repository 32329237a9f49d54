#include "reference/decode_step.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

struct QueryShape {
  std::int64_t rows, heads, width;
  DType dtype;
};

QueryShape expect_query(const Query& query) {
  if (const auto* pair = std::get_if<QueryPair>(&query)) {
    expect_host(pair->latent);
    expect_host(pair->rope);
    expect_rank(pair->latent, 3);
    expect_rank(pair->rope, 3);
    expect_dtype(pair->latent, DType::kBF16);
    expect(pair->rope, DType::kBF16,
           {pair->latent.size(0), pair->latent.size(1), pair->rope.size(2)});
    return {pair->latent.size(0), pair->latent.size(1), pair->latent.size(2) + pair->rope.size(2),
            DType::kBF16};
  }
  const auto& tensor = std::get<TensorView>(query);
  expect_host(tensor);
  expect_rank(tensor, 3);
  return {tensor.size(0), tensor.size(1), tensor.size(2), tensor.dtype};
}

}  // namespace

DecodeStep settle(const TensorView& out, const TensorView& lse, const Query& query,
                  const KvCache& cache, const DecodeRows& rows, const DecodeScales& scales) {
  const QueryShape shape = expect_query(query);
  const DType kv = cache.data.dtype;
  const bool known = shape.dtype == DType::kBF16 || shape.dtype == DType::kE4M3;
  if (!known || (kv != DType::kBF16 && kv != DType::kE4M3) ||
      (shape.dtype == DType::kE4M3 && kv != DType::kE4M3)) {
    throw Unsupported("decode on the host: query " + std::string(name(shape.dtype)) +
                      " with cache " + std::string(name(kv)) +
                      "; a bf16 query goes with either cache, an e4m3 query with e4m3");
  }
  for (const TensorView& view :
       {out, lse, cache.data, rows.visible, rows.row_begin, rows.block_table}) {
    expect_host(view);
  }
  expect_rank(out, 3);
  expect_rank(rows.block_table, 2);
  const std::int64_t requests = rows.block_table.size(0);
  expect_float(out);
  expect_shape(out, {shape.rows, shape.heads, out.size(2)});
  expect(lse, DType::kF32, {shape.rows, shape.heads});
  expect_shape(cache.data, {cache.pages(), cache.page_size(), shape.width});
  expect_unit_last_stride(cache.data);
  expect(rows.visible, DType::kI32, {shape.rows});
  expect(rows.row_begin, DType::kI32, {requests + 1});
  expect_dtype(rows.block_table, DType::kI32);
  if (out.size(2) > shape.width) expect_shape(out, {shape.rows, shape.heads, shape.width});
  const float k_scale = cache.quantized() ? cache.scale : 1.0F;
  const float q_scale = shape.dtype == DType::kE4M3 ? scales.q_scale : 1.0F;
  return {requests,    shape.rows,  shape.heads,
          out.size(2), shape.width, query,
          cache,       rows,        scales.softmax_scale * q_scale * k_scale,
          k_scale};
}

std::vector<std::int64_t> visible_keys(const DecodeStep& step) {
  std::vector<std::int64_t> keys(static_cast<std::size_t>(step.requests), 0);
  for (std::int64_t b = 0; b < step.requests; ++b) {
    if (step.first_row(b) < 0 || step.first_row(b + 1) < step.first_row(b) ||
        step.first_row(b + 1) > step.rows) {
      throw InvalidArgument("row_begin of request " + std::to_string(b) + ": [" +
                            std::to_string(step.first_row(b)) + ", " +
                            std::to_string(step.first_row(b + 1)) + ") must ascend within " +
                            std::to_string(step.rows) + " rows");
    }
    auto& most = keys[static_cast<std::size_t>(b)];
    for (std::int64_t t = step.first_row(b); t < step.first_row(b + 1); ++t) {
      most = std::max(most, index_at(step.plan.visible, t));
    }
    const std::int64_t page_size = step.cache.page_size();
    const std::int64_t columns = (most + page_size - 1) / page_size;
    if (columns > step.plan.block_table.size(1)) {
      throw InvalidArgument("request " + std::to_string(b) + " sees " + std::to_string(most) +
                            " keys, past the " + std::to_string(step.plan.block_table.size(1)) +
                            " columns of its block table row");
    }
    const TensorView table = step.plan.block_table.select(0, b);
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t page = index_at(table, column);
      if (page >= 0 && page < step.cache.pages()) continue;
      throw InvalidArgument("block_table[" + std::to_string(b) + "][" + std::to_string(column) +
                            "] = " + std::to_string(page) + " leaves the cache of " +
                            std::to_string(step.cache.pages()) + " pages");
    }
  }
  return keys;
}

}  // namespace mladcp
