// One MLA decode attention call as an engine or a kernel dumped it: what went in, what came out.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "harness/safetensors.h"
#include "reference/oracle.h"

namespace mladcp {

// A safetensors file of
//   q            [B, q_len, H, D]  e4m3 or bf16
//   kv_cache     [pages, page, D]  e4m3 or bf16; [pages, page, 1, D] is taken too
//   block_table  [B, columns]      i32
//   seq_lens     [B]               i32, keys that the call's cache holds of each request
//   out          [B, q_len, H, L]  bf16 or fp32
//   lse          [B, q_len, H]     fp32, natural logarithm; of a row without keys -inf or +inf
// and of metadata
//   softmax_scale  and, with e4m3, k_scale and q_scale: what one unit of a code is worth
//   causal         "True": row j of a request sees seq_len - q_len + j + 1 keys; "False": all.
//                  May be left out where q_len is 1
// Under DCP it is the call of one rank: H the gathered heads, seq_lens those of its shard.
struct AttentionDump {
  SafetensorsFile file;
  std::vector<Tensor> keys;  // per request [S, D]: the cache, out of its pages
  OracleProblem problem;     // rows in order [B * q_len]

  TensorView out() const { return file.tensor("out").merged(0); }  // [T, H, L]
  TensorView lse() const { return file.tensor("lse").merged(0); }  // [T, H]
};

// InvalidArgument naming file, tensor and remedy: what read_safetensors refuses, a tensor that is
// missing or of another dtype or shape, a length beyond the table, a page beyond the cache (with
// request and column), a scale that is missing, not finite or not above 0, q_len
// above 1 without causal, a query without elements, an Inf or NaN in the query or a visible key.
AttentionDump read_attention_dump(const std::string& path);

}  // namespace mladcp
