// What every paged MLA decode kernel of this folder takes: plain pointers, sizes, strides. Host-includable, no CUDA.
//
//   out[t, h, :] = output_scale * sum_k softmax_k(logit_scale * <query[t, h, :], cache[slot(k), :]>) * cache[slot(k), 0:L]
//   lse[t, h]    = log sum_k exp(logit_scale * <query[t, h, :], cache[slot(k), :]>)        over local keys k < visible[t]
//
// A row with visible[t] == 0 gives out 0 and lse -inf. Cache rows at or beyond the largest `visible` of a request, and
// block-table entries of pages that hold only such rows, are never used: they may hold NaN codes and wild indices.
#ifndef MLADCP_KERNELS_DECODE_DECODE_PARAMS_H_
#define MLADCP_KERNELS_DECODE_DECODE_PARAMS_H_

#include <cstdint>

namespace mladcp {

inline constexpr int kDecodeLatentRank = 512;  // L
inline constexpr int kDecodeRopeDim = 64;      // R
inline constexpr int kDecodeQkDim = kDecodeLatentRank + kDecodeRopeDim;  // D
inline constexpr int kDecodeBlockKeys = 64;    // keys of one block of the schedule, whatever the page size

enum class DecodeDType : std::uint8_t { kE4M3, kBF16 };

// One part is what one worker (a CTA, or the CTAs of one part's row tiles) walks, as 8 int32 in this order: the `blocks`
// dialect of the scheduler. Requests begin_request..end_request, both included; blocks [begin_block, ..) of the first,
// [.., end_block) of the last, all blocks of those between. begin_request -1: nothing to do.
struct DecodePart {
  std::int32_t begin_request;
  std::int32_t begin_block;
  std::int32_t end_request;
  std::int32_t end_block;
  std::int32_t begin_split;  // index of this part's piece among the splits of begin_request
  std::int32_t unused[3];
};
static_assert(sizeof(DecodePart) == 32, "a part is 8 int32");

struct DecodeParams {
  // Query [T, H, D], rows of D contiguous elements; strides in elements.
  const void* query;
  DecodeDType query_dtype;
  std::int64_t query_row_stride;
  std::int64_t query_head_stride;

  // Cache [num_pages, page_size, D]; strides in elements. cache_page_stride need not be page_size * cache_row_stride.
  const void* cache;
  DecodeDType cache_dtype;
  std::int64_t cache_page_stride;
  std::int64_t cache_row_stride;
  std::int32_t page_size;
  std::int32_t num_pages;

  // block_table [B, block_table_stride]: page of local tokens [i * page_size, (i + 1) * page_size) of request b.
  const std::int32_t* block_table;
  std::int64_t block_table_stride;

  // Query rows of request b are row_begin[b] .. row_begin[b + 1]; row_begin is [B + 1].
  // visible [T]: local keys row t attends to, 0 allowed anywhere; rows of one request are independent of each other.
  const std::int32_t* row_begin;
  const std::int32_t* visible;
  std::int32_t num_requests;          // B
  std::int32_t num_rows;              // T
  std::int32_t num_heads;             // H
  std::int32_t max_rows_per_request;  // an upper bound of row_begin[b + 1] - row_begin[b]; fixes grid and workspace

  // Schedule, on the device: parts [num_parts], num_splits [B + 1] cumulative (request b has
  // num_splits[b + 1] - num_splits[b] >= 1 splits). It must cover ceil(max visible of b / 64) blocks of each request;
  // blocks beyond that are skipped.
  const DecodePart* parts;
  const std::int32_t* num_splits;
  std::int32_t num_parts;

  float logit_scale;   // softmax_scale * q_scale * k_scale, > 0
  float output_scale;  // k_scale

  // out bf16 [T, H, L], lse fp32 [T, H] (natural log); strides in elements, L contiguous.
  void* out;
  std::int64_t out_row_stride;
  std::int64_t out_head_stride;
  float* lse;
  std::int64_t lse_row_stride;
  std::int64_t lse_head_stride;

  // Partials of requests with more than one split, written by the attention kernel, merged by the combine kernel:
  // partial_out [S, max_rows_per_request * H, L], already divided by the split's sum and multiplied by output_scale;
  // partial_lse [S, max_rows_per_request * H], natural log, -inf where the split has no visible key (then partial_out
  // may hold anything). Split index: num_splits[b] + split. Row index: (t - row_begin[b]) * H + h.
  // S = decode_max_splits(B, num_parts).
  float* partial_out;
  float* partial_lse;
};

// Every part has at most one piece that does not start its request, so B + num_parts bounds the pieces.
constexpr std::int64_t decode_max_splits(std::int64_t num_requests, std::int64_t num_parts) {
  return num_requests + num_parts;
}

}  // namespace mladcp

#endif  // MLADCP_KERNELS_DECODE_DECODE_PARAMS_H_
