#include "reference/cpu_attention_ops.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/lse_merge.h"
#include "core/scheduler.h"
#include "reference/decode_pieces.h"
#include "reference/decode_step.h"
#include "reference/host_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kTileKeys = 128;   // keys multiplied at once: 288 KiB of fp32 rows
constexpr std::int64_t kKeyMultiple = 8;  // a tile's last columns are SIMD work like the first
constexpr std::int64_t kMergeGrain = 16;  // rows a thread merges at a time

ScheduleParams schedule_params(int num_sms) {
  ScheduleParams params;
  params.num_sms = num_sms;
  return params;
}

RowMatrix load_queries(const DecodeStep& step, std::int64_t request) {
  RowMatrix queries(step.query_rows(request), step.width);
  std::int64_t row = 0;
  for (std::int64_t t = step.first_row(request); t < step.first_row(request + 1); ++t) {
    for (std::int64_t h = 0; h < step.heads; ++h, ++row) {
      float* values = queries.row(row).data();
      if (const auto* pair = std::get_if<QueryPair>(&step.query)) {
        load_row(values, pair->latent, offset_of(pair->latent, t, h));
        load_row(values + pair->latent.size(2), pair->rope, offset_of(pair->rope, t, h));
      } else {
        const auto& tensor = std::get<TensorView>(step.query);
        load_row(values, tensor, offset_of(tensor, t, h));
      }
    }
  }
  return queries;
}

// Codes of keys [begin, begin + count) of a request, without the scale; then `padded - count` rows
// of 0.
void load_keys(RowMatrix& keys, const DecodeStep& step, std::int64_t request, std::int64_t begin,
               std::int64_t count, std::int64_t padded) {
  const std::int64_t page_size = step.cache.page_size();
  const TensorView& table = step.plan.block_table;
  const TensorView& cache = step.cache.data;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t key = begin + k;
    const std::int64_t page =
        table.as<const std::int32_t>()[offset_of(table, request, key / page_size)];
    load_row(keys.row(k).data(), cache,
             cache_row_offset(page, key % page_size, cache.strides[0], cache.strides[1]));
  }
  keys.middleRows(count, padded - count).setZero();
}

// What one piece knows of its query rows.
struct Partial {
  RowMatrix out;       // [rows, L] sum of P * key codes; at the end k_scale times their mean
  Eigen::ArrayXf max;  // [rows] largest logit so far
  Eigen::ArrayXf sum;  // [rows] sum of P = exp(logit - max)
  Eigen::ArrayXf lse;  // [rows] at the end
};

// Dot products -> P in place, for the keys [begin, begin + count); rescales what earlier tiles
// left.
void softmax_tile(Eigen::Ref<RowMatrix> tile, Partial& partial, const DecodeStep& step,
                  std::int64_t request, std::int64_t begin, std::int64_t count) {
  for (std::int64_t row = 0; row < tile.rows(); ++row) {
    const std::int64_t t = step.first_row(request) + row / step.heads;
    const std::int64_t visible =
        std::clamp<std::int64_t>(index_at(step.plan.visible, t) - begin, 0, count);
    auto p = tile.row(row).array();
    if (visible == 0) {
      p.setZero();
      continue;
    }
    p *= step.logit_scale;
    const float max = std::max(partial.max[row], p.head(visible).maxCoeff());
    if (max > partial.max[row]) {
      const float shrink = std::exp(partial.max[row] - max);
      partial.out.row(row) *= shrink;
      partial.sum[row] *= shrink;
      partial.max[row] = max;
    }
    p = (p - partial.max[row]).exp();
    p.tail(p.size() - visible).setZero();
    partial.sum[row] += p.sum();
  }
}

Partial attend(const DecodeStep& step, const DecodePiece& piece) {
  const RowMatrix queries = load_queries(step, piece.request);
  Partial partial{RowMatrix::Zero(queries.rows(), step.latent),
                  Eigen::ArrayXf::Constant(queries.rows(), kEmptyLse),
                  Eigen::ArrayXf::Zero(queries.rows()),
                  {}};
  RowMatrix keys(kTileKeys, step.width);
  RowMatrix logits(queries.rows(), kTileKeys);
  for (std::int64_t begin = piece.begin_key; begin < piece.end_key; begin += kTileKeys) {
    const std::int64_t count = std::min(kTileKeys, piece.end_key - begin);
    const std::int64_t padded = (count + kKeyMultiple - 1) / kKeyMultiple * kKeyMultiple;
    load_keys(keys, step, piece.request, begin, count, padded);
    auto tile = logits.leftCols(padded);
    tile.noalias() = queries * keys.topRows(padded).transpose();
    softmax_tile(tile, partial, step, piece.request, begin, count);
    partial.out.noalias() += tile * keys.topLeftCorner(padded, step.latent);
  }
  // A sum of NaN stays one: only a row that saw nothing is empty.
  partial.lse = (partial.sum == 0.0F).select(kEmptyLse, partial.max + partial.sum.log());
  partial.out.array().colwise() *=
      (partial.sum == 0.0F).select(0.0F, step.output_scale / partial.sum);
  return partial;
}

// The partials of one request, in split order.
struct Splits {
  const Partial* first = nullptr;
  int count = 0;
};

std::vector<Splits> splits_of_requests(const std::vector<DecodePiece>& pieces,
                                       const std::vector<Partial>& partials,
                                       std::int64_t requests) {
  std::vector<Splits> splits(static_cast<std::size_t>(requests));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Splits& of_request = splits[static_cast<std::size_t>(pieces[i].request)];
    if (of_request.count++ == 0) of_request.first = &partials[i];
  }
  return splits;
}

// Merges row `row` of the splits into out (one row) and returns its LSE. The merge law takes NaN
// for an empty split; a reference must not hide it.
float merge_row(Eigen::RowVectorXf& out, const Splits& splits, std::int64_t row) {
  const auto lse_of = [&](int n) { return splits.first[n].lse[row]; };
  const LseMerge law(splits.count, lse_of);
  bool is_nan = false;
  out.setZero();
  for (int n = 0; n < splits.count; ++n) {
    const float weight = law.weight(lse_of(n));
    if (weight != 0.0F) out += weight * splits.first[n].out.row(row);
    is_nan = is_nan || std::isnan(lse_of(n));
  }
  if (!is_nan) return law.lse();
  out.setConstant(std::numeric_limits<float>::quiet_NaN());
  return std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

std::int64_t CpuAttentionOps::num_parts(const ScheduleShape& shape) const {
  return num_sm_parts(scheduled_sms_, shape.heads, shape.q_len);
}

void CpuAttentionOps::build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                                     const ScheduleShape&, Stream) {
  mladcp::build_schedule(schedule, lengths, ScheduleDialect::kBlocks,
                         schedule_params(scheduled_sms_));
}

void CpuAttentionOps::decode(const TensorView& out, const TensorView& lse, const Query& query,
                             const KvCache& cache, const DecodeRows& rows,
                             const ScheduleTensors& schedule, const DecodeScales& scales,
                             const TensorView&, Stream) {
  const DecodeStep step = settle(out, lse, query, cache, rows, scales);
  const std::vector<DecodePiece> pieces = read_schedule(schedule, visible_keys(step));
  std::vector<Partial> partials(pieces.size());
  parallel_for(threads_, static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    partials[static_cast<std::size_t>(i)] = attend(step, pieces[static_cast<std::size_t>(i)]);
  });
  const std::vector<Splits> splits = splits_of_requests(pieces, partials, step.requests);
  for (std::int64_t b = 0; b < step.requests; ++b) {
    parallel_for(
        threads_, step.query_rows(b),
        [&](std::int64_t row) {
          Eigen::RowVectorXf merged(step.latent);
          const std::int64_t t = step.first_row(b) + row / step.heads;
          const std::int64_t h = row % step.heads;
          lse.as<float>()[offset_of(lse, t, h)] =
              merge_row(merged, splits[static_cast<std::size_t>(b)], row);
          store_row(out, offset_of(out, t, h), merged.data());
        },
        kMergeGrain);
  }
}

std::int64_t CpuAttentionOps::decode_workspace_bytes(std::int64_t, const ScheduleShape&,
                                                     std::int64_t) const {
  return 0;
}

}  // namespace mladcp
