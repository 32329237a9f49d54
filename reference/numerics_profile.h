// How an implementation rounds, as numbers. The bounds of reference/error_bounds.h follow from
// them; the derivations are in docs/numerics.md.
#pragma once

#include <cstdint>
#include <string_view>

namespace mladcp {

// Sums of products on some unit: `step` products enter the accumulator at a time. Per step,
// relative to the largest magnitude among accumulator and products, the error is at most
//   random: of either sign, as roundings to nearest are, or truncations of terms of mixed signs
//   toward_zero: always against the sum's own sign, as truncations of an accumulator are
struct Accumulator {
  std::int64_t step = 1;
  double random = 0x1p-24;
  double toward_zero = 0.0;
};

// The format of P between the two products. With `offset` P is stored as 2^offset * exp(z - max).
struct ProbabilityFormat {
  double roundoff = 0.0;         // relative, of normal numbers; 0: stays in fp32
  double smallest_normal = 0.0;  // below, roundings are absolute: smallest_normal * roundoff
  double flush = 0.0;            // at most this becomes 0
  int offset = 0;
};

struct NumericsProfile {
  std::string_view name;
  Accumulator products;           // absorb and value projection
  Accumulator logits;             // query times key
  Accumulator values;             // P times value, within a chain
  std::int64_t chain_keys = 128;  // keys of one chain before it is added in fp32; 0: a whole walk
  ProbabilityFormat probability;
  double exp_error = 0x1p-23;  // relative, of exp or exp2, argument arithmetic aside
  // Logits are e4m3 wgmma in one chain over all channels: the model of the tensor core gives them
  // bit for bit, and judges the LSE far more sharply than rounding analysis (device_lse.h).
  bool device_lse = false;
  // Keys between two additions to the one fp32 sum of P that a walk keeps: equal weights round the
  // same way each time. 0: enough partial sums for their roundings to be independent.
  std::int64_t sum_keys = 0;
};

namespace profiles {

// reference/cpu_*: Eigen in fp32, tiles of 128 keys, P in fp32.
extern const NumericsProfile kCpu;
// kernels/decode/generic_decode: mma.sync m16n8k16 on f16 (e4m3 cache) or bf16 (bf16 cache)
// operands; P in the same format, f16 with offset 15.
extern const NumericsProfile kCudaGenericFp8;
extern const NumericsProfile kCudaGenericBf16;
// kernels/decode/sm90_fp8: wgmma on e4m3, promoted to fp32 every page of 64 keys, P e4m3 with
// offset 7; and its variant with P and V in f16, offset 5.
extern const NumericsProfile kSm90Fp8;
extern const NumericsProfile kSm90Fp8F16;
// kernels/decode/sm90_bf16: wgmma on bf16, P bf16, one chain for a whole walk.
extern const NumericsProfile kSm90Bf16;
// FlashMLA's dense FP8 decode: wgmma on e4m3, one chain for the whole walk of an SM, P e4m3 at
// scale 1.
extern const NumericsProfile kFlashMlaFp8;

}  // namespace profiles

// InvalidArgument listing the known names.
const NumericsProfile& profile_from_name(std::string_view name);

}  // namespace mladcp
