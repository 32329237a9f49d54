#include "kernels/decode/sm90_common/refusal.h"

namespace mladcp::sm90 {
namespace {

std::int64_t address(const void* p) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p));
}

}  // namespace

std::string decode_refusal(const DecodeParams& p, std::string_view kernel, int element_bytes) {
  const std::string who(kernel);
  const auto aligned = [&](std::int64_t elements) { return elements * element_bytes % 16 == 0; };
  if (p.page_size < 64 || (p.page_size & (p.page_size - 1)) != 0) {
    return who + " takes pages of 64 times a power of two tokens, got " +
           std::to_string(p.page_size);
  }
  if (address(p.query) % 16 != 0 || !aligned(p.query_row_stride) || !aligned(p.query_head_stride)) {
    return who + " reads the query 16 bytes at a time: its address, row stride " +
           std::to_string(p.query_row_stride) + " and head stride " +
           std::to_string(p.query_head_stride) + " must be multiples of 16 bytes";
  }
  if (address(p.cache) % 16 != 0 || !aligned(p.cache_page_stride) || !aligned(p.cache_row_stride)) {
    return who + " reads the cache by TMA: its address, page stride " +
           std::to_string(p.cache_page_stride) + " and row stride " +
           std::to_string(p.cache_row_stride) + " must be multiples of 16 bytes";
  }
  if (address(p.out) % 4 != 0 || p.out_row_stride % 2 != 0 || p.out_head_stride % 2 != 0) {
    return who + " writes pairs of bf16: the output's address and strides must be even";
  }
  if (p.num_requests * p.block_table_stride >= (std::int64_t{1} << 31)) {
    return who + " takes block tables of fewer than 2^31 entries, got " +
           std::to_string(p.num_requests) + " x " + std::to_string(p.block_table_stride);
  }
  if (!(p.logit_scale > 0.0F)) {
    return who + " needs logit_scale > 0, got " + std::to_string(p.logit_scale);
  }
  return {};
}

}  // namespace mladcp::sm90
