// The configuration of a DCP deployment and its rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/kv_sharding.h"

namespace mladcp {

// What enters attention: the pair (latent, RoPE), or one e4m3 tensor. kAuto: quantised exactly when
// the cache is FP8.
enum class QueryForm : std::uint8_t { kAuto, kPair, kQuantized };

// How partial results of the ranks become one (docs/combine.md).
enum class Combine : std::uint8_t {
  kAllGatherReduceScatter,  // ag_rs: gather LSE, correct own partial, reduce-scatter on heads
  kAllToAll,                // a2a: exchange partials and LSE, merge in fp32
  kAllToAllPacked           // a2a_packed: one exchange, LSE bits in two bf16 lanes
};

std::string_view name(QueryForm form);                  // "auto", "pair", "quantized"
std::string_view name(Combine combine);                 // "ag_rs", "a2a", "a2a_packed"
QueryForm query_form_from_name(std::string_view text);  // InvalidArgument listing the known names
Combine combine_from_name(std::string_view text);

struct ParallelConfig {
  std::int64_t heads = 128;  // all query heads of the model
  std::int64_t tp = 8;       // tensor-parallel ranks; each holds heads / tp heads
  std::int64_t dcp = 8;      // N; contiguous TP ranks form one group, tp / dcp groups exist
  std::int64_t interleave = 1;
  std::int64_t page_size = 64;
  DType kv_dtype = DType::kE4M3;
  QueryForm query = QueryForm::kAuto;
  float q_scale = 1.0F;
  float k_scale = 1.0F;
  Combine combine = Combine::kAllGatherReduceScatter;
  DType reduce_dtype = DType::kBF16;  // of ag_rs' reduce-scatter: bf16 or fp32
  bool project_before_merge = false;  // apply W_UV to partials; needs W_UV of all gathered heads
  bool replicate_query = false;       // every rank holds the queries of all gathered heads

  std::int64_t local_heads() const { return heads / tp; }              // H
  std::int64_t gathered_heads() const { return local_heads() * dcp; }  // Hg
  std::int64_t groups() const { return tp / dcp; }
  KvSharding sharding() const { return {dcp, interleave}; }
  bool quantized_query() const;  // kAuto resolved
};

// Beyond these no product of sizes is sure to fit 64 bits; kernels hold page sizes in int32.
inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 20;           // also of tp, dcp
inline constexpr std::int64_t kMostPageSize = (std::int64_t{1} << 31) - 1;  // also of interleave

// Whether it may be a scale of codes: the largest code times it stays finite in fp32; the smallest
// one times it, and the scale over the sum of P of 2^26 keys, stay normal.
constexpr bool is_scale(double value) { return value >= 0x1p-100 && value <= 0x1p+100; }
inline constexpr const char* kScaleRule = "must be from 2^-100 to 2^100";

// Throws InvalidArgument naming field, value and remedy: sizes > 0 and at most the above, tp % dcp
// == 0, heads % tp == 0, page_size % interleave == 0, scales as above, kv_dtype bf16 or e4m3, a
// quantised query only with an FP8 cache, reduce_dtype bf16 or fp32.
void validate(const ParallelConfig& config);

}  // namespace mladcp
