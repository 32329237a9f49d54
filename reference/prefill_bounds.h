// How far a chunked prefill may lie from the FP64 oracle on the rows it saw (docs/numerics.md).
//
// To first order, with the sums of PrefillReference:
//   output  out_unit |out|                                              one rounding at the end
//         + 4 sqrt(projection_unit^2 (logit_squares + value_squares) + p_unit^2 value_squares)
//         + fp32_unit (16 (logit_weighted + |out| lse_magnitude) + chain * magnitude)
//         + flushed + 2 * 2^-134
//   lse     4 projection_unit sqrt(lse_squares) + fp32_unit (16 lse_magnitude + chain)
//   chain = (chunks + 1) (2 |lse| + 8) + log(keys) + 4 sqrt(keys) + 16
// Keys and values of a row are rounded to the projection's dtype: unbiased, so they add as squares,
// 4 standard bounds (the worst case up to 16 keys). The rest is fp32: dot products, exponentials,
// sums, one merge a chunk. Sums inside the projections are left out: their variance is 2^-23 of
// that rounding's. An exponential, or a chunk's weight, that fp32 holds no normal number for may
// become 0 or stay near 2^-126: such a weight's keys have p below it. Values and the output round
// by up to 2^-134 (kHalfSubnormal) however small they are.
#pragma once

#include <cstdint>
#include <span>

#include "reference/compare.h"
#include "reference/prefill_oracle.h"

namespace mladcp {

struct PrefillFormats {
  double projection_unit = 0x1p-8;  // keys and values in bf16
  double p_unit = 0.0;              // P in fp32; 2^-8 when it is rounded to bf16
  double out_unit = 0x1p-8;         // output in bf16; 0 for the running result in fp32
  double fp32_unit = 0x1p-24;       // 2^-23 where a tensor core truncates
  std::int64_t chunks = 0;          // merges
};

struct ExpectedPrefill {
  Expected out;
  Expected lse;
};

// One head: out [rows, Vd], lse [rows].
ExpectedPrefill expect_prefill(const PrefillReference& reference, const PrefillFormats& formats);

// Heads first .. first + count - 1 of the problem: out [rows, count, Vd], lse [rows, count].
ExpectedPrefill expect_prefill(const PrefillProblem& problem, std::int64_t first,
                               std::int64_t count, std::span<const std::int64_t> rows,
                               const PrefillFormats& formats, int threads);

}  // namespace mladcp
