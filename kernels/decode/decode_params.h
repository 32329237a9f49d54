// What every paged MLA decode kernel takes: plain pointers, sizes, strides. No CUDA in here.
//
//   logit(k)     = logit_scale * <query[t, h, :], cache[slot(k), :]>,   local keys k < visible[t]
//   out[t, h, :] = output_scale * sum_k softmax(logit)(k) * cache[slot(k), 0:L]
//   lse[t, h]    = log sum_k exp(logit(k))
//
// A row with visible[t] == 0 gives out 0 and lse -inf. Cache rows at or beyond lengths[b], and
// block-table entries of pages that hold only such rows, have no influence: they may hold NaN codes
// and wild indices.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace mladcp {

inline constexpr int kDecodeLatentRank = 512;                            // L
inline constexpr int kDecodeRopeDim = 64;                                // R
inline constexpr int kDecodeQkDim = kDecodeLatentRank + kDecodeRopeDim;  // D
inline constexpr int kDecodeBlockKeys = 64;  // keys of a block of the schedule, at any page size

// What one worker walks (a CTA, or the CTAs of one part's row tiles), in the `blocks` dialect of
// the scheduler: requests begin_request..end_request, both included; blocks [begin_block, ..) of
// the first, [.., end_block) of the last, all blocks of those between. begin_request -1: nothing to
// do.
struct DecodePart {
  std::int32_t begin_request;
  std::int32_t begin_block;
  std::int32_t end_request;
  std::int32_t end_block;
  std::int32_t begin_split;  // which split of begin_request this part's first piece is
  std::int32_t unused[3];
};
static_assert(sizeof(DecodePart) == 32, "a part is 8 int32");

struct DecodeParams {
  // Query [T, H, D], the D elements of a row contiguous; strides in elements.
  const void* query;
  DType query_dtype;  // kE4M3 or kBF16
  std::int64_t query_row_stride;
  std::int64_t query_head_stride;

  // Cache [num_pages, page_size, D]; strides in elements, the page stride is free.
  const void* cache;
  DType cache_dtype;  // kE4M3 or kBF16
  std::int64_t cache_page_stride;
  std::int64_t cache_row_stride;
  std::int32_t page_size;
  std::int32_t num_pages;

  // [B, block_table_columns], the stride free: entry i of request b is the page of its local tokens
  // [i * page_size, (i + 1) * page_size).
  const std::int32_t* block_table;
  std::int64_t block_table_stride;
  std::int32_t block_table_columns;

  // row_begin [B + 1]: query rows of request b are row_begin[b] .. row_begin[b + 1] - 1.
  // visible [T]: local keys row t attends to, 0 allowed anywhere; rows are independent of each
  // other. lengths [B]: the largest visible of the request's rows.
  const std::int32_t* row_begin;
  const std::int32_t* visible;
  const std::int32_t* lengths;
  std::int32_t num_requests;          // B
  std::int32_t num_rows;              // T
  std::int32_t num_heads;             // H
  std::int32_t max_rows_per_request;  // upper bound of row_begin[b + 1] - row_begin[b]

  // Schedule, on the device: parts [num_parts]; num_splits [B + 1], cumulative, at least one split
  // a request. It covers ceil(lengths[b] / 64) blocks of request b; blocks beyond that are skipped.
  const DecodePart* parts;
  const std::int32_t* num_splits;
  std::int32_t num_parts;

  float logit_scale;   // softmax_scale * q_scale * k_scale, > 0
  float output_scale;  // k_scale

  // out bf16 [T, H, L], L contiguous; lse fp32 [T, H], natural log; strides in elements.
  void* out;
  std::int64_t out_row_stride;
  std::int64_t out_head_stride;
  float* lse;
  std::int64_t lse_row_stride;
  std::int64_t lse_head_stride;

  // Partials of requests with more than one split, written by the attention kernel and merged by
  // the combine kernel: partial_out fp32 [S, max_rows_per_request * H, L], normalised and
  // multiplied by output_scale; partial_lse [S, max_rows_per_request * H], natural log, -inf where
  // the split has no visible key (partial_out then holds zeros). With f16_partials the values are
  // f16 at the same indices and not multiplied by output_scale, so that none passes the largest
  // code of the cache: half the traffic for an error of 2^-11. Split index num_splits[b] + split,
  // row index (t - row_begin[b]) * H + h, S = decode_max_splits(B, num_parts). Only splits that the
  // schedule uses are touched.
  void* partial_out;
  float* partial_lse;
  bool f16_partials;
};

// Every part has at most one piece that does not start its request.
constexpr std::int64_t decode_max_splits(std::int64_t num_requests, std::int64_t num_parts) {
  return num_requests + num_parts;
}

}  // namespace mladcp
