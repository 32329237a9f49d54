#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/scheduler.h"
#include "kernels/cuda_ops.h"
#include "kernels/decode/combine/combine.h"
#include "kernels/decode/decode_params.h"
#include "kernels/decode/generic_decode.h"
#include "kernels/decode/sm90_bf16/decode.h"
#include "kernels/decode/sm90_common/schedule.h"
#include "kernels/decode/sm90_fp8/decode.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/row_access.h"
#include "kernels/metadata/metadata.h"
#include "kernels/op_checks.h"
#include "kernels/query/concat.h"

namespace mladcp {
namespace {

constexpr std::int64_t kAlignment = 256;

// Scratch of one decode: a concatenated query pair, then the partials of split requests.
struct Scratch {
  std::int64_t query_bytes = 0;
  std::int64_t out_bytes = 0;
  std::int64_t lse_bytes = 0;

  std::int64_t total() const { return query_bytes + out_bytes + lse_bytes; }
};

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Scratch scratch_for(std::int64_t rows, std::int64_t requests, std::int64_t parts,
                    std::int64_t heads, std::int64_t q_len, bool pair) {
  const std::int64_t split_rows = decode_max_splits(requests, parts) * q_len * heads;
  return {pair ? aligned(rows * heads * kDecodeQkDim * 2) : 0,
          aligned(split_rows * kDecodeLatentRank * 4), aligned(split_rows * 4)};
}

bool is_supported_page(std::int64_t page) {
  return page == 16 || page == 32 || page == 64 || page == 128;
}

void expect_supported_cache(const KvCache& cache) {
  expect_cache(cache, cache.data.shape[2]);
  if (cache.data.shape[2] != kDecodeQkDim) {
    throw Unsupported("CUDA decode: cache rows of " + std::to_string(cache.data.shape[2]) +
                      " elements; the kernels are built for latent 512 and rope 64, 576 together");
  }
  if (!is_supported_page(cache.page_size())) {
    throw Unsupported("CUDA decode: page size " + std::to_string(cache.page_size()) +
                      "; use 16, 32, 64 or 128, or expand the block table to such a page");
  }
  expect_aligned_rows(cache.data, cache.quantized() ? 16 : 8, "CUDA decode");
}

std::int32_t to_int32(std::int64_t value, const char* field) {
  if (value >= 0 && value <= std::numeric_limits<std::int32_t>::max())
    return static_cast<std::int32_t>(value);
  throw Unsupported("CUDA decode: " + std::string(field) + " = " + std::to_string(value) +
                    " passes 32 bits; use fewer of them a step");
}

void expect_rows_of_step(const DecodeRows& rows, std::int64_t tokens) {
  const std::int64_t requests = rows.lengths.shape[0];
  expect(rows.request, DType::kI32, {tokens});
  expect(rows.visible, DType::kI32, {tokens});
  expect(rows.lengths, DType::kI32, {requests});
  expect(rows.row_begin, DType::kI32, {requests + 1});
  expect_dims(rows.block_table, 2);
  expect(rows.block_table, DType::kI32, {requests, rows.block_table.shape[1]});
  for (const TensorView& view :
       {rows.request, rows.visible, rows.lengths, rows.row_begin, rows.block_table}) {
    expect_unit_last_stride(view);
  }
}

void expect_schedule(const ScheduleTensors& schedule, std::int64_t requests) {
  expect_dims(schedule.parts, 2);
  expect(schedule.parts, DType::kI32, {schedule.parts.shape[0], kPartFields});
  expect(schedule.num_splits, DType::kI32, {requests + 1});
  expect_contiguous(schedule.parts);
  expect_contiguous(schedule.num_splits);
}

void expect_query(const TensorView& query, const KvCache& cache, const Shape& shape) {
  expect_shape(query, shape);
  expect_unit_last_stride(query);
  const bool quantized = query.dtype == DType::kE4M3;
  if (!quantized) expect_dtype(query, DType::kBF16);
  if (quantized && !cache.quantized()) {
    throw Unsupported(
        "CUDA decode: an e4m3 query over a bf16 cache; use a bf16 query, or an e4m3 cache");
  }
  expect_aligned_rows(query, quantized ? 16 : 8, "CUDA decode");
}

// What the kernels read; outputs, partials and the rows a request may have are left to the caller.
DecodeParams params_of(const TensorView& query, const KvCache& cache, const DecodeRows& rows,
                       const ScheduleTensors& schedule, const DecodeScales& scales) {
  DecodeParams p = {};
  p.query = query.data;
  p.query_dtype = query.dtype;
  p.query_row_stride = query.strides[0];
  p.query_head_stride = query.strides[1];
  p.cache = cache.data.data;
  p.cache_dtype = cache.data.dtype;
  p.cache_page_stride = cache.data.strides[0];
  p.cache_row_stride = cache.data.strides[1];
  p.page_size = to_int32(cache.page_size(), "page size");
  p.num_pages = to_int32(cache.pages(), "pages");
  p.block_table = rows.block_table.as<const std::int32_t>();
  p.block_table_stride = rows.block_table.strides[0];
  p.block_table_columns = to_int32(rows.block_table.shape[1], "columns of the block table");
  p.row_begin = rows.row_begin.as<const std::int32_t>();
  p.visible = rows.visible.as<const std::int32_t>();
  p.lengths = rows.lengths.as<const std::int32_t>();
  p.num_requests = to_int32(rows.lengths.shape[0], "requests");
  p.num_rows = to_int32(query.shape[0], "rows");
  p.num_heads = to_int32(query.shape[1], "heads");
  p.parts = schedule.parts.as<const DecodePart>();
  p.num_splits = schedule.num_splits.as<const std::int32_t>();
  p.num_parts = to_int32(schedule.parts.shape[0], "parts");
  const float cache_scale = cache.quantized() ? cache.scale : 1.0F;
  p.logit_scale =
      scales.softmax_scale * (query.dtype == DType::kE4M3 ? scales.q_scale : 1.0F) * cache_scale;
  p.output_scale = cache_scale;
  return p;
}

}  // namespace

bool CudaAttentionOps::runs_hopper_kernels() const {
  return kernels_ == DecodeKernels::kBest && device_.properties().compute_capability == 90;
}

std::int64_t CudaAttentionOps::num_parts(const ScheduleShape& shape) const {
  return num_sm_parts(device_.properties().multiprocessors, shape.heads, shape.q_len);
}

ScheduleParams CudaAttentionOps::schedule_params(const ScheduleShape& shape) const {
  ScheduleParams params;
  params.num_sms = device_.properties().multiprocessors;
  if (runs_hopper_kernels()) {
    params.overhead_blocks =
        sm90_decode_overhead_blocks(static_cast<int>(shape.q_len), static_cast<int>(shape.heads));
  }
  return params;
}

void CudaAttentionOps::build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                                      const ScheduleShape& shape, Stream stream) {
  expect_on(device_, {schedule.parts, schedule.num_splits, lengths});
  const DeviceGuard guard(device_.index());
  build_schedule_on_device(schedule, lengths, ScheduleDialect::kBlocks, schedule_params(shape),
                           stream);
}

std::string_view CudaAttentionOps::decode_profile(DType query, DType cache, std::int64_t page,
                                                  const ScheduleShape& shape) const {
  const bool hopper = runs_hopper_kernels();
  if (cache == DType::kBF16) return hopper && page >= 64 ? "sm90_bf16" : "cuda_generic_bf16";
  if (!hopper || query != DType::kE4M3 || page < 64) return "cuda_generic_fp8";
  const auto q_len = static_cast<int>(shape.q_len);
  return sm90_fp8_decode_tile_rows(q_len, static_cast<int>(shape.heads)) == 64 ? "sm90_fp8"
                                                                               : "sm90_fp8_f16";
}

std::int64_t CudaAttentionOps::decode_workspace_bytes(std::int64_t rows, const ScheduleShape& shape,
                                                      std::int64_t) const {
  // Fewer rows per request leave room for more parts; each row may be a request of its own.
  std::int64_t most = 0;
  for (std::int64_t q_len = 1; q_len <= shape.q_len; ++q_len) {
    const std::int64_t parts = num_parts({shape.heads, q_len});
    most = std::max(most, scratch_for(rows, rows, parts, shape.heads, q_len, true).total());
  }
  return most;
}

void CudaAttentionOps::decode(const TensorView& out, const TensorView& lse, const Query& query,
                              const KvCache& cache, const DecodeRows& rows,
                              const ScheduleTensors& schedule, const DecodeScales& scales,
                              const TensorView& workspace, Stream stream) {
  expect_dims(out, 3);
  const std::int64_t tokens = out.shape[0];
  const std::int64_t heads = out.shape[1];
  const std::int64_t requests = rows.lengths.shape[0];
  const auto* pair = std::get_if<QueryPair>(&query);
  const TensorView first = pair != nullptr ? pair->latent : std::get<TensorView>(query);
  expect_on(device_, {out, lse, first, cache.data, rows.request, rows.visible, rows.lengths,
                      rows.row_begin, rows.block_table, schedule.parts, schedule.num_splits});
  expect_supported_cache(cache);
  expect(out, DType::kBF16, {tokens, heads, kDecodeLatentRank});
  expect_aligned_rows(out, 8, "CUDA decode");
  expect(lse, DType::kF32, {tokens, heads});
  expect_rows_of_step(rows, tokens);
  expect_schedule(schedule, requests);
  if (tokens == 0 || heads == 0) return;

  const std::int64_t parts = schedule.parts.shape[0];
  const std::int64_t q_len = std::max<std::int64_t>(rows.q_len, 1);
  const Scratch scratch = scratch_for(tokens, requests, parts, heads, q_len, pair != nullptr);
  expect_on(device_, {workspace});
  if (workspace.bytes() < scratch.total()) {
    throw InvalidArgument(
        "tensor " + describe(workspace) + ": decode of " + std::to_string(tokens) + " rows, " +
        std::to_string(requests) + " requests, " + std::to_string(parts) + " parts needs " +
        std::to_string(scratch.total()) + " bytes of scratch; see decode_workspace_bytes");
  }
  if (q_len * heads > 65535) {
    throw Unsupported("CUDA decode: " + std::to_string(q_len) + " rows of " +
                      std::to_string(heads) + " heads a request; at most 65535 together");
  }
  auto* bytes = workspace.as<unsigned char>();
  const DeviceGuard guard(device_.index());
  TensorView joined = first;
  if (pair != nullptr) {
    expect(pair->latent, DType::kBF16, {tokens, heads, kDecodeLatentRank});
    expect(pair->rope, DType::kBF16, {tokens, heads, kDecodeRopeDim});
    expect_on(device_, {pair->rope});
    for (const TensorView& part : {pair->latent, pair->rope}) expect_unit_last_stride(part);
    const Shape shape = {tokens, heads, kDecodeQkDim};
    joined = {bytes, DType::kBF16, shape, contiguous_strides(shape), &device_, "query"};
    launch_concat(joined, pair->latent, pair->rope, 1.0F, stream);
  }
  expect_query(joined, cache, {tokens, heads, kDecodeQkDim});

  DecodeParams p = params_of(joined, cache, rows, schedule, scales);
  p.max_rows_per_request = to_int32(q_len, "rows of a request");
  p.out = out.data;
  p.out_row_stride = out.strides[0];
  p.out_head_stride = out.strides[1];
  p.lse = lse.as<float>();
  p.lse_row_stride = lse.strides[0];
  p.lse_head_stride = lse.strides[1];
  p.partial_out = bytes + scratch.query_bytes;
  p.partial_lse = reinterpret_cast<float*>(bytes + scratch.query_bytes + scratch.out_bytes);
  const bool hopper = runs_hopper_kernels();
  p.f16_partials = cache.quantized();
  if (hopper && sm90_fp8_decode_refusal(p).empty()) {
    launch_sm90_fp8_decode(p, cuda_stream(stream));
  } else if (hopper && sm90_bf16_decode_refusal(p).empty()) {
    launch_sm90_bf16_decode(p, cuda_stream(stream));
  } else {
    p.f16_partials = false;
    launch_generic_decode(p, device_.properties().max_shared_bytes_per_block, stream);
  }
  launch_decode_combine(p, cuda_stream(stream));
}

}  // namespace mladcp
