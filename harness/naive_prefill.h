// Plain operations of a chunked prefill for fault injection: one loop each, in which a fault may
// change where a row is read, how a key is weighted, how results merge. Slow and simple, and on
// every device, through the host.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/fault_variations.h"

namespace mladcp {

// A chunk's index arrays on the host.
struct ChunkIndex {
  std::vector<std::int32_t> cu_seq_lens;   // [B + 1]
  std::vector<std::int32_t> token_to_seq;  // [toks]
  std::vector<std::int32_t> seq_starts;    // [B]
};

struct NaiveGather {
  // Where destination row t comes from.
  struct Source {
    std::int64_t request = 0;
    std::int64_t local_row = 0;  // in the request's cache
  };
  std::function<Source(const ChunkIndex& index, std::int64_t t)> source;
  // The block-table column of a local row.
  std::function<std::int64_t(std::int64_t local_row, std::int64_t page_size)> column;
  // The value of a stored number; stored * scale unless given.
  std::function<float(float stored, float scale)> value;
  // Rows and channels for which this says false keep what they held.
  std::function<bool(const Source& source, std::int64_t channel, std::int64_t width)> writes;

  // What lies outside table or cache reads as 0.
  void run(const OpFunctions::Gather& call) const;
};

struct NaiveRows {
  // How often row i of a request counts its key j (of the chunk); 1 where visible unless given.
  std::function<double(std::int64_t i, std::int64_t j)> weight;
  // P = exp(logit - max) in the format it is multiplied in; the sum of P keeps fp32.
  std::function<float(float p)> round_p;

  void run(const OpFunctions::Attend& call) const;
};

// Two results with their LSEs become one.
struct NaiveMerge {
  // Weight of the running result; that of the partial is 1 minus it unless given.
  std::function<float(float running_lse, float partial_lse)> running_weight, partial_weight;
  std::function<float(float running_lse, float partial_lse)> lse;

  void run(const OpFunctions::MergeInto& call) const;
};

}  // namespace mladcp
