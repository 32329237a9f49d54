// What chunked prefill asks of the cache and query operations on the host: gather and dequantise,
// reorganise, and the kv_b up-projection.
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/conversions.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/cpu_cache_ops.h"
#include "reference/cpu_query_ops.h"
#include "reference/host_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kRowGrain = 64;      // rows a thread moves at a time
constexpr std::int64_t kProjectRows = 256;  // rows of one product

[[noreturn]] void refuse(const std::string& what, std::int64_t got, const std::string& expected) {
  throw InvalidArgument(what + " = " + std::to_string(got) + ": " + expected);
}

std::string entry(const TensorView& view, std::int64_t i) {
  return std::string(view.name) + "[" + std::to_string(i) + "]";
}

void expect_host_all(std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) expect_host(view);
}

// Destination rows that lie together in one page of the cache.
struct Run {
  std::int64_t begin = 0;  // first destination row
  std::int64_t rows = 0;
  std::int64_t source = 0;  // offset, in elements, of the first row in the cache
};

std::int64_t page_at(const TensorView& table, std::int64_t request, std::int64_t column) {
  return table.as<const std::int32_t>()[offset_of(table, request, column)];
}

void check_request(std::int64_t s, std::int64_t begin, std::int64_t rows, std::int64_t start,
                   const KvCache& cache, const TensorView& table) {
  const std::string request = " of request " + std::to_string(s);
  if (s == 0 && begin != 0) refuse("cu_seq_lens[0]", begin, "must be 0");
  if (rows < 0) refuse("length" + request, rows, "must not be negative; cu_seq_lens must rise");
  if (start < 0) refuse("seq_starts" + request, start, "must not be negative");
  if (rows == 0) return;  // table entries of a request without rows may be anything
  const std::int64_t last = (start + rows - 1) / cache.page_size();
  if (last >= table.size(1)) {
    refuse("block_table columns", table.size(1),
           "rows " + std::to_string(start) + " .. " + std::to_string(start + rows - 1) + request +
               " reach column " + std::to_string(last));
  }
  for (std::int64_t c = start / cache.page_size(); c <= last; ++c) {
    const std::int64_t page = page_at(table, s, c);
    if (page >= 0 && page < cache.pages()) continue;
    refuse("block_table[request " + std::to_string(s) + "][column " + std::to_string(c) + "]", page,
           "the cache has pages 0 .. " + std::to_string(cache.pages() - 1));
  }
}

void check_token(std::int64_t t, const ContextChunkTensors& chunk, std::int64_t requests) {
  const std::int64_t s = index_at(chunk.token_to_seq, t);
  if (s < 0 || s >= requests) {
    refuse(entry(chunk.token_to_seq, t), s,
           "the batch has requests 0 .. " + std::to_string(requests - 1));
  }
  if (t >= index_at(chunk.cu_seq_lens, s) && t < index_at(chunk.cu_seq_lens, s + 1)) return;
  refuse(entry(chunk.token_to_seq, t), s,
         "row " + std::to_string(t) + " lies outside cu_seq_lens of request " + std::to_string(s));
}

// The chunk as runs. Refuses, by name, what would lead a read astray; nothing of the cache is read.
std::vector<Run> checked_runs(const KvCache& cache, const TensorView& table,
                              const ContextChunkTensors& chunk) {
  const std::int64_t requests = table.size(0);
  const std::int64_t page_size = cache.page_size();
  std::vector<Run> runs;
  for (std::int64_t s = 0; s < requests; ++s) {
    const std::int64_t begin = index_at(chunk.cu_seq_lens, s);
    const std::int64_t rows = index_at(chunk.cu_seq_lens, s + 1) - begin;
    const std::int64_t start = index_at(chunk.seq_starts, s);
    check_request(s, begin, rows, start, cache, table);
    for (std::int64_t done = 0; done < rows;) {
      const std::int64_t off = start + done;
      const std::int64_t count = std::min(rows - done, page_size - off % page_size);
      runs.push_back({begin + done, count,
                      cache_row_offset(page_at(table, s, off / page_size), off % page_size,
                                       cache.data.strides[0], cache.data.strides[1])});
      done += count;
    }
  }
  // With every row inside its request's range, the ranges are what token_to_seq says.
  const std::int64_t toks = chunk.token_to_seq.size(0);
  for (std::int64_t t = 0; t < toks; ++t) check_token(t, chunk, requests);
  const std::int64_t end = index_at(chunk.cu_seq_lens, requests);
  if (end != toks) {
    refuse(entry(chunk.cu_seq_lens, requests), end,
           "token_to_seq has " + std::to_string(toks) + " rows");
  }
  return runs;
}

void copy_run(const TensorView& out, const KvCache& cache, const Run& run) {
  const std::int64_t width = out.size(1);
  auto* to = out.as<BFloat16>() + offset_of(out, run.begin);
  const auto* from = cache.data.as<const BFloat16>() + run.source;
  const bool dense = out.strides[0] == width && cache.data.strides[1] == width;
  const std::int64_t pieces = dense ? 1 : run.rows;
  const std::int64_t bytes = run.rows / pieces * width * std::int64_t{sizeof(BFloat16)};
  for (std::int64_t i = 0; i < pieces; ++i) {
    std::memcpy(to + i * out.strides[0], from + i * cache.data.strides[1],
                static_cast<std::size_t>(bytes));
  }
}

// bf16(float(code) * scale) of every code.
std::array<BFloat16, 256> dequantised_codes(float scale) {
  std::array<Float8E4M3, 256> codes;
  for (std::size_t code = 0; code < codes.size(); ++code) {
    codes[code] = Float8E4M3::from_bits(static_cast<std::uint8_t>(code));
  }
  std::array<BFloat16, 256> values;
  dequantize(std::span<BFloat16>(values), std::span<const Float8E4M3>(codes), scale);
  return values;
}

// weight[h] of [H, X, Y] as fp32.
RowMatrix load_weight(const TensorView& weight, std::int64_t h) {
  RowMatrix matrix(weight.size(1), weight.size(2));
  for (std::int64_t x = 0; x < weight.size(1); ++x) {
    load_row(matrix.row(x).data(), weight, offset_of(weight, h, x));
  }
  return matrix;
}

}  // namespace

void CpuCacheOps::gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                        const TensorView& block_table,
                                        const ContextChunkTensors& chunk, Stream) {
  expect_host_all(
      {out, cache.data, block_table, chunk.cu_seq_lens, chunk.token_to_seq, chunk.seq_starts});
  expect_rank(cache.data, 3);
  expect_rank(block_table, 2);
  expect_rank(chunk.token_to_seq, 1);
  const std::int64_t toks = chunk.token_to_seq.size(0);
  const std::int64_t requests = block_table.size(0);
  const std::int64_t width = cache.data.size(2);
  expect(out, DType::kBF16, {toks, width});
  if (!cache.quantized()) expect_dtype(cache.data, DType::kBF16);
  expect_unit_last_stride(cache.data);
  expect_unit_last_stride(out);
  expect_dtype(block_table, DType::kI32);
  expect(chunk.cu_seq_lens, DType::kI32, {requests + 1});
  expect(chunk.seq_starts, DType::kI32, {requests});
  expect_dtype(chunk.token_to_seq, DType::kI32);
  const std::vector<Run> runs = checked_runs(cache, block_table, chunk);
  const auto count = static_cast<std::int64_t>(runs.size());

  if (!cache.quantized()) {
    parallel_for(threads_, count,
                 [&](std::int64_t i) { copy_run(out, cache, runs[static_cast<std::size_t>(i)]); });
    return;
  }
  const std::array<BFloat16, 256> values = dequantised_codes(cache.scale);
  parallel_for(threads_, count, [&](std::int64_t i) {
    const Run& run = runs[static_cast<std::size_t>(i)];
    for (std::int64_t row = 0; row < run.rows; ++row) {
      const auto* codes =
          cache.data.as<const std::uint8_t>() + run.source + row * cache.data.strides[1];
      auto* to = out.as<BFloat16>() + offset_of(out, run.begin + row);
      for (std::int64_t d = 0; d < width; ++d) to[d] = values[codes[d]];
    }
  });
}

void CpuCacheOps::reorganise(const TensorView& out, const TensorView& gathered,
                             const TensorView& source_rows, Stream) {
  expect_host_all({out, gathered, source_rows});
  expect_rank(gathered, 2);
  expect_rank(source_rows, 1);
  expect_dtype(gathered, DType::kBF16);
  expect_dtype(source_rows, DType::kI32);
  const std::int64_t rows = source_rows.size(0);
  expect(out, DType::kBF16, {rows, gathered.size(1)});
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t source = index_at(source_rows, i);
    if (source >= 0 && source < gathered.size(0)) continue;
    refuse(entry(source_rows, i), source,
           "the gathered chunk has rows 0 .. " + std::to_string(gathered.size(0) - 1));
  }
  parallel_for(
      threads_, rows,
      [&](std::int64_t i) {
        copy_row(out, offset_of(out, i), gathered, offset_of(gathered, index_at(source_rows, i)));
      },
      kRowGrain);
}

void CpuQueryOps::project_keys_values(const TensorView& key, const TensorView& value,
                                      const TensorView& rows, const TensorView& w_uk,
                                      const TensorView& w_uv, Stream) {
  expect_host_all({key, value, rows, w_uk, w_uv});
  expect_rank(rows, 2);
  expect_rank(w_uk, 3);
  expect_rank(w_uv, 3);
  const std::int64_t count = rows.size(0);
  const std::int64_t heads = w_uk.size(0);
  const std::int64_t nope = w_uk.size(1);
  const std::int64_t latent = w_uk.size(2);
  const std::int64_t rope = rows.size(1) - latent;
  const std::int64_t width = w_uv.size(2);
  expect_dtype(rows, DType::kBF16);
  expect_dtype(w_uk, DType::kBF16);
  expect(w_uv, DType::kBF16, {heads, latent, width});
  expect(key, DType::kBF16, {count, heads, nope + rope});
  expect(value, DType::kBF16, {count, heads, width});
  if (count == 0) return;

  const TensorView latents = rows.narrow(1, 0, latent);
  const TensorView ropes = rows.narrow(1, latent, rope);
  const TensorView key_nope = key.narrow(2, 0, nope);
  const TensorView key_rope = key.narrow(2, nope, rope);
  const std::int64_t blocks = (count + kProjectRows - 1) / kProjectRows;
  parallel_for(threads_, heads * blocks, [&](std::int64_t task) {
    const std::int64_t h = task / blocks;
    const std::int64_t begin = task % blocks * kProjectRows;
    const std::int64_t block = std::min(kProjectRows, count - begin);
    RowMatrix in(block, latent);
    for (std::int64_t i = 0; i < block; ++i) {
      load_row(in.row(i).data(), latents, offset_of(latents, begin + i));
    }
    const RowMatrix keys = in * load_weight(w_uk, h).transpose();
    const RowMatrix values = in * load_weight(w_uv, h);
    for (std::int64_t i = 0; i < block; ++i) {
      const std::int64_t row = begin + i;
      store_row(key_nope, offset_of(key_nope, row, h), keys.row(i).data());
      copy_row(key_rope, offset_of(key_rope, row, h), ropes, offset_of(ropes, row));
      store_row(value, offset_of(value, row, h), values.row(i).data());
    }
  });
}

}  // namespace mladcp
