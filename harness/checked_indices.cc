#include "harness/checked_indices.h"

#include <string>

#include "core/error.h"
#include "harness/exact_checks.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(const TensorView& tensor, std::int64_t index, std::int64_t value,
                         const std::string& expected) {
  throw InvalidArgument("tensor " + describe(tensor) + ": " + tensor.name +
                        coordinates(tensor.shape, index) + " = " + std::to_string(value) + ": " +
                        expected);
}

// The pages of local rows [begin, end) of a request.
void expect_pages(const TensorView& host_table, const TensorView& table, std::int64_t request,
                  std::int64_t begin, std::int64_t end, const KvCache& cache) {
  if (begin >= end) return;
  const std::int64_t columns = table.size(1);
  for (std::int64_t c = begin / cache.page_size(); c <= (end - 1) / cache.page_size(); ++c) {
    const std::int64_t at = request * columns + c;
    if (request < 0 || request >= table.size(0) || c >= columns) {
      throw InvalidArgument("tensor " + describe(table) + ": request " + std::to_string(request) +
                            " has no column " + std::to_string(c) + " for local row " +
                            std::to_string(end - 1) + "; check lengths and block table");
    }
    const std::int64_t page = host_table.as<const std::int32_t>()[at];
    if (page < 0 || page >= cache.pages()) {
      refuse(table, at, page, "the cache has " + std::to_string(cache.pages()) + " pages");
    }
  }
}

}  // namespace

void CheckedCacheOps::write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                            const TensorView& slots, Stream stream) {
  const Tensor host = copied_to_host(slots, stream);
  const std::int64_t rows = cache.pages() * cache.page_size();
  for (std::int64_t t = 0; t < slots.elements(); ++t) {
    const std::int64_t slot = host.as<const std::int64_t>()[t];
    if (slot >= rows) {
      refuse(slots, t, slot, "the cache has " + std::to_string(rows) + " rows; check its table");
    }
  }
  next().write(cache, kv_c, k_pe, slots, stream);
}

void CheckedCacheOps::gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                            const TensorView& block_table,
                                            const ContextChunkTensors& chunk, Stream stream) {
  const Tensor table = copied_to_host(block_table, stream);
  const Tensor begins = copied_to_host(chunk.cu_seq_lens, stream);
  const Tensor starts = copied_to_host(chunk.seq_starts, stream);
  for (std::int64_t s = 0; s < block_table.size(0); ++s) {
    const auto* begin = begins.as<const std::int32_t>() + s;
    const std::int64_t first = starts.as<const std::int32_t>()[s];
    expect_pages(table, block_table, s, first, first + begin[1] - begin[0], cache);
  }
  next().gather_and_dequantize(out, cache, block_table, chunk, stream);
}

void CheckedAttentionOps::decode(const TensorView& out, const TensorView& lse, const Query& query,
                                 const KvCache& cache, const DecodeRows& rows,
                                 const ScheduleTensors& schedule, const DecodeScales& scales,
                                 const TensorView& workspace, Stream stream) {
  const Tensor table = copied_to_host(rows.block_table, stream);
  const Tensor request = copied_to_host(rows.request, stream);
  const Tensor visible = copied_to_host(rows.visible, stream);
  for (std::int64_t t = 0; t < rows.request.elements(); ++t) {
    expect_pages(table, rows.block_table, request.as<const std::int32_t>()[t], 0,
                 visible.as<const std::int32_t>()[t], cache);
  }
  next().decode(out, lse, query, cache, rows, schedule, scales, workspace, stream);
}

}  // namespace mladcp
