// Attention of chunked prefill: new tokens to themselves (causal), new tokens to a chunk of context
// (unmasked).
#pragma once

#include <cstdint>

#include "core/device.h"

namespace mladcp {

inline constexpr int kPrefillQkDim = 192;     // P + R
inline constexpr int kPrefillValueDim = 128;  // Vd

// Rows of heads: strides in elements, the last dim dense. LSE natural, -inf where a request has no
// keys (out 0 then).
struct PrefillParams {
  float* out;                   // [M, H, 128]
  float* lse;                   // [M, H]
  const void* query;            // [M, H, 192] bf16
  const void* key;              // [K, H, 192] bf16
  const void* value;            // [K, H, 128] bf16
  std::int64_t out_strides[2];  // of row and head
  std::int64_t lse_strides[2];
  std::int64_t query_strides[2];
  std::int64_t key_strides[2];
  std::int64_t value_strides[2];
  const std::int32_t* cu_rows;  // [B + 1]
  const std::int32_t* cu_keys;  // [B + 1]
  std::int64_t requests;
  std::int64_t heads;
  std::int64_t max_rows;  // most rows of one request
  float softmax_scale;
};

// Row i of a request sees its keys 0 .. i when causal, all its keys otherwise.
void launch_prefill_attention(const PrefillParams& params, bool causal, Stream stream);

}  // namespace mladcp
