// Attention over plain rows on the host: causal among new tokens, unmasked over context rows. One
// online softmax per query row, over blocks of keys, in fp32 (Eigen).
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/lse_merge.h"
#include "reference/cpu_attention_ops.h"
#include "reference/host_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A block of keys is widened once for so many query rows; its logits and the rows' sums fit a
// core's cache.
constexpr std::int64_t kQueryBlock = 256;
constexpr std::int64_t kKeyBlock = 128;

struct Attention {
  TensorView out;    // [M, H, Vd]
  TensorView lse;    // [M, H]
  TensorView query;  // [M, H, P + R]
  TensorView key;    // [K, H, P + R]
  TensorView value;  // [K, H, Vd]
  float softmax_scale;
};

// Query rows begin .. end - 1 of one request against its key rows key_begin .. key_end - 1.
struct Tile {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  bool causal = false;
  std::int64_t first_row = 0;  // causal: row i sees keys key_begin .. key_begin + i - first_row

  // The last key any row of the tile sees, plus one.
  std::int64_t seen_end() const { return causal ? key_begin + end - first_row : key_end; }
  // The first of the tile's rows, counted from 0, that sees key `key`.
  std::int64_t first_seeing(std::int64_t key) const {
    return causal ? key - key_begin + first_row - begin : 0;
  }
  std::int64_t visible_end(std::int64_t row) const {
    return causal ? key_begin + row - first_row + 1 : key_end;
  }
};

// view[begin + i, h, :], i < count, as fp32. Rows of one head lie H rows apart, where no hardware
// prefetch follows: some rows ahead are asked for while one is widened.
RowMatrix load_rows(const TensorView& view, std::int64_t begin, std::int64_t count,
                    std::int64_t h) {
  constexpr std::int64_t kAhead = 6;
  constexpr std::int64_t kCacheLine = 64;
  const std::int64_t row_bytes = view.size(2) * static_cast<std::int64_t>(size_bytes(view.dtype));
  RowMatrix matrix(count, view.size(2));
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const auto* row =
          view.as<const char>() + offset_of(view, begin + i + kAhead, h) *
                                      static_cast<std::int64_t>(size_bytes(view.dtype));
      for (std::int64_t at = 0; at < row_bytes; at += kCacheLine) __builtin_prefetch(row + at);
    }
    load_row(matrix.row(i).data(), view, offset_of(view, begin + i, h));
  }
  return matrix;
}

void write_empty(const Attention& attention, const Tile& tile, std::int64_t h) {
  const Eigen::VectorXf zeros = Eigen::VectorXf::Zero(attention.out.size(2));
  for (std::int64_t row = tile.begin; row < tile.end; ++row) {
    store_row(attention.out, offset_of(attention.out, row, h), zeros.data());
    attention.lse.as<float>()[offset_of(attention.lse, row, h)] = kEmptyLse;
  }
}

// The online softmax of a tile's rows.
struct RunningRows {
  Eigen::VectorXf max, sum;
  RowMatrix acc;

  RunningRows(std::int64_t rows, std::int64_t width)
      : max(Eigen::VectorXf::Constant(rows, kEmptyLse)),
        sum(Eigen::VectorXf::Zero(rows)),
        acc(RowMatrix::Zero(rows, width)) {}

  // Row i takes the first `seen` logits of the block and leaves exp(logit - max), 0 behind them.
  void take(std::int64_t i, Eigen::Ref<Eigen::RowVectorXf> block, std::int64_t seen) {
    block.tail(block.size() - seen).setZero();
    if (seen == 0) return;
    auto logits = block.head(seen);
    const float new_max = std::max(max(i), logits.maxCoeff());
    const float rescale = std::exp(max(i) - new_max);
    logits = (logits.array() - new_max).exp();
    sum(i) = sum(i) * rescale + logits.sum();
    acc.row(i) *= rescale;
    max(i) = new_max;
  }
};

// Attention of the tile's rows for head h. Every row sees its first key, so maxima are finite from
// its first block on.
void attend(const Attention& attention, const Tile& tile, std::int64_t h) {
  if (tile.key_begin == tile.key_end) return write_empty(attention, tile, h);
  const std::int64_t rows = tile.end - tile.begin;
  const RowMatrix query = load_rows(attention.query, tile.begin, rows, h);
  RunningRows running(rows, attention.value.size(2));
  for (std::int64_t begin = tile.key_begin; begin < tile.seen_end(); begin += kKeyBlock) {
    const std::int64_t count = std::min(kKeyBlock, tile.seen_end() - begin);
    // Causal rows before the block's first key see none of it.
    const std::int64_t first = std::clamp<std::int64_t>(tile.first_seeing(begin), 0, rows);
    const std::int64_t below = rows - first;
    RowMatrix p = query.bottomRows(below) * load_rows(attention.key, begin, count, h).transpose();
    p *= attention.softmax_scale;
    for (std::int64_t i = first; i < rows; ++i) {
      const std::int64_t seen = tile.visible_end(tile.begin + i) - begin;
      running.take(i, p.row(i - first), std::clamp<std::int64_t>(seen, 0, count));
    }
    running.acc.bottomRows(below).noalias() += p * load_rows(attention.value, begin, count, h);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    running.acc.row(i) /= running.sum(i);
    store_row(attention.out, offset_of(attention.out, tile.begin + i, h),
              running.acc.row(i).data());
    attention.lse.as<float>()[offset_of(attention.lse, tile.begin + i, h)] =
        running.max(i) + std::log(running.sum(i));
  }
}

void expect_attention(const Attention& a, const TensorView& cu_rows, std::int64_t keys) {
  for (const TensorView& view : {a.out, a.lse, a.query, a.key, a.value, cu_rows}) {
    expect_host(view);
  }
  expect_rank(a.query, 3);
  expect_rank(a.value, 3);
  expect_rank(cu_rows, 1);
  const std::int64_t rows = a.query.size(0);
  const std::int64_t heads = a.query.size(1);
  const std::int64_t width = a.value.size(2);
  expect_dtype(a.query, DType::kBF16);
  expect(a.key, DType::kBF16, {keys, heads, a.query.size(2)});
  expect(a.value, DType::kBF16, {keys, heads, width});
  expect(a.out, DType::kF32, {rows, heads, width});
  expect(a.lse, DType::kF32, {rows, heads});
  expect_dtype(cu_rows, DType::kI32);
}

// A prefix sum over `total` rows, or an error naming the request.
void expect_prefix_sum(const TensorView& cu, std::int64_t total) {
  const std::int64_t requests = cu.size(0) - 1;
  if (requests < 0 || index_at(cu, 0) != 0 || index_at(cu, requests) != total) {
    throw InvalidArgument("tensor " + describe(cu) + ": must start at 0 and end at " +
                          std::to_string(total) + ", the number of rows");
  }
  for (std::int64_t b = 0; b < requests; ++b) {
    if (index_at(cu, b) <= index_at(cu, b + 1)) continue;
    throw InvalidArgument("tensor " + describe(cu) + ": request " + std::to_string(b) + " has " +
                          std::to_string(index_at(cu, b + 1) - index_at(cu, b)) + " rows");
  }
}

// Calls attend for every tile of kQueryBlock rows and every head.
void attend_tiles(int threads, const Attention& attention, const std::vector<Tile>& tiles) {
  const std::int64_t heads = attention.query.size(1);
  parallel_for(threads, static_cast<std::int64_t>(tiles.size()) * heads, [&](std::int64_t task) {
    attend(attention, tiles[static_cast<std::size_t>(task / heads)], task % heads);
  });
}

// `whole` cut into tiles of kQueryBlock rows.
void append_tiles(std::vector<Tile>& tiles, const Tile& whole) {
  for (std::int64_t begin = whole.begin; begin < whole.end; begin += kQueryBlock) {
    Tile tile = whole;
    tile.begin = begin;
    tile.end = std::min(begin + kQueryBlock, whole.end);
    tiles.push_back(tile);
  }
}

}  // namespace

void CpuAttentionOps::causal(const TensorView& out, const TensorView& lse, const TensorView& query,
                             const TensorView& key, const TensorView& value,
                             const TensorView& cu_rows, std::int64_t /*max_rows*/,
                             float softmax_scale, Stream) {
  const Attention attention{out, lse, query, key, value, softmax_scale};
  expect_attention(attention, cu_rows, query.size(0));
  expect_prefix_sum(cu_rows, query.size(0));
  std::vector<Tile> tiles;
  for (std::int64_t b = 0; b + 1 < cu_rows.size(0); ++b) {
    const std::int64_t begin = index_at(cu_rows, b);
    const std::int64_t end = index_at(cu_rows, b + 1);
    append_tiles(tiles, {begin, end, begin, end, true, begin});
  }
  attend_tiles(threads_, attention, tiles);
}

void CpuAttentionOps::context(const TensorView& out, const TensorView& lse, const TensorView& query,
                              const TensorView& key, const TensorView& value,
                              const TensorView& cu_rows, std::int64_t /*max_rows*/,
                              const TensorView& cu_context, float softmax_scale, Stream) {
  const Attention attention{out, lse, query, key, value, softmax_scale};
  expect_attention(attention, cu_rows, key.size(0));
  expect_prefix_sum(cu_rows, query.size(0));
  expect(cu_context, DType::kI32, {cu_rows.size(0)});
  expect_host(cu_context);
  expect_prefix_sum(cu_context, key.size(0));
  std::vector<Tile> tiles;
  for (std::int64_t b = 0; b + 1 < cu_rows.size(0); ++b) {
    append_tiles(tiles, {index_at(cu_rows, b), index_at(cu_rows, b + 1), index_at(cu_context, b),
                         index_at(cu_context, b + 1), false, 0});
  }
  attend_tiles(threads_, attention, tiles);
}

}  // namespace mladcp
