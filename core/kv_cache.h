// The paged KV cache of one rank and the block table that leads into it.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace mladcp {

// MLA dimensions every operation needs. Table of symbols: docs/laws.md.
struct MlaDims {
  std::int64_t latent = 512;  // L, kv_lora_rank
  std::int64_t rope = 64;     // R, qk_rope_head_dim
  std::int64_t nope = 128;    // P, qk_nope_head_dim
  std::int64_t value = 128;   // Vd, v_head_dim

  std::int64_t row() const { return latent + rope; }  // D, a cache row
};

// One rank's cache: rows of [latent | rope]. data `[pages, page, D]` bf16 or e4m3; pages and rows
// may be strided (a cache row may be part of a wider one), the last axis has stride 1. A row
// dequantises to float(code) * scale; a BF16 cache ignores the scale.
struct KvCache {
  TensorView data;
  float scale = 1.0F;  // k_scale: one for latent and rope alike; MLA has no v_scale

  std::int64_t pages() const { return data.shape[0]; }
  std::int64_t page_size() const { return data.shape[1]; }
  bool quantized() const { return data.dtype == DType::kE4M3; }
};

// Offsets in elements, 64-bit throughout: slot 3,728,271 of a 576-wide cache passes 2^31.
constexpr std::int64_t cache_row_offset(std::int64_t page, std::int64_t row,
                                        std::int64_t page_stride, std::int64_t row_stride) {
  return page * page_stride + row * row_stride;
}

}  // namespace mladcp
