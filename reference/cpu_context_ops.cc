// What chunked prefill asks of the cache and query operations on the host: gather and dequantise,
// reorganise, and the kv_b up-projection.
#include <Eigen/Core>
#include <array>
#include <span>
#include <string>

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

// Where the destination rows of a chunk come from.
class ChunkRows {
 public:
  ChunkRows(const KvCache& cache, const TensorView& block_table, const ContextChunkTensors& chunk)
      : cache_(cache), table_(block_table), chunk_(chunk) {}

  // Everything that could lead a read astray, named; nothing of the cache is read.
  void check() const {
    for (std::int64_t s = 0; s < requests(); ++s) check_request(s);
    for (std::int64_t t = 0; t < chunk_.token_to_seq.size(0); ++t) check_row(t);
  }

  // The offset, in elements, of destination row t's source.
  std::int64_t source(std::int64_t t) const {
    const std::int64_t s = index_at(chunk_.token_to_seq, t);
    const std::int64_t off = local_row(t, s);
    const std::int64_t page = index(table_, s, off / cache_.page_size());
    return cache_row_offset(page, off % cache_.page_size(), cache_.data.strides[0],
                            cache_.data.strides[1]);
  }

 private:
  std::int64_t requests() const { return table_.size(0); }

  static std::int64_t index(const TensorView& view, std::int64_t i, std::int64_t j) {
    return view.as<const std::int32_t>()[offset_of(view, i, j)];
  }

  std::int64_t local_row(std::int64_t t, std::int64_t s) const {
    return t - index_at(chunk_.cu_seq_lens, s) + index_at(chunk_.seq_starts, s);
  }

  void check_request(std::int64_t s) const {
    const std::string request = " of request " + std::to_string(s);
    const std::int64_t begin = index_at(chunk_.cu_seq_lens, s);
    const std::int64_t rows = index_at(chunk_.cu_seq_lens, s + 1) - begin;
    const std::int64_t start = index_at(chunk_.seq_starts, s);
    if (s == 0 && begin != 0) refuse(entry(chunk_.cu_seq_lens, 0), begin, "must be 0");
    if (rows < 0) refuse("length" + request, rows, "must not be negative; cu_seq_lens must rise");
    if (start < 0) refuse("seq_starts" + request, start, "must not be negative");
    if (rows == 0) return;  // table entries of a request without rows may be anything
    const std::int64_t last = (start + rows - 1) / cache_.page_size();
    if (last >= table_.size(1)) {
      refuse("block_table columns", table_.size(1),
             "rows " + std::to_string(start) + " .. " + std::to_string(start + rows - 1) + request +
                 " reach column " + std::to_string(last));
    }
    for (std::int64_t c = start / cache_.page_size(); c <= last; ++c) {
      const std::int64_t page = index(table_, s, c);
      if (page >= 0 && page < cache_.pages()) continue;
      refuse("block_table[request " + std::to_string(s) + "][column " + std::to_string(c) + "]",
             page, "the cache has pages 0 .. " + std::to_string(cache_.pages() - 1));
    }
  }

  void check_row(std::int64_t t) const {
    const std::int64_t s = index_at(chunk_.token_to_seq, t);
    if (s < 0 || s >= requests()) {
      refuse(entry(chunk_.token_to_seq, t), s,
             "the batch has requests 0 .. " + std::to_string(requests() - 1));
    }
    if (t >= index_at(chunk_.cu_seq_lens, s) && t < index_at(chunk_.cu_seq_lens, s + 1)) return;
    refuse(entry(chunk_.token_to_seq, t), s,
           "row " + std::to_string(t) + " lies outside cu_seq_lens of request " +
               std::to_string(s) + ", column " + std::to_string(s));
  }

  const KvCache& cache_;
  const TensorView& table_;
  const ContextChunkTensors& chunk_;
};

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
  const ChunkRows rows(cache, block_table, chunk);
  rows.check();

  if (!cache.quantized()) {
    parallel_for(
        threads_, toks,
        [&](std::int64_t t) { copy_row(out, offset_of(out, t), cache.data, rows.source(t)); },
        kRowGrain);
    return;
  }
  const std::array<BFloat16, 256> values = dequantised_codes(cache.scale);
  parallel_for(
      threads_, toks,
      [&](std::int64_t t) {
        const auto* codes = cache.data.as<const std::uint8_t>() + rows.source(t);
        auto* to = out.as<BFloat16>() + offset_of(out, t);
        for (std::int64_t d = 0; d < width; ++d) to[d] = values[codes[d]];
      },
      kRowGrain);
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
