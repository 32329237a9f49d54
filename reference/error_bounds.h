// What each stage of decode should give, and how far an element may lie from it: a bound from
// rounding analysis, never a tolerance. The formulas are derived in docs/numerics.md.
#pragma once

#include <span>
#include <vector>

#include "core/dtype.h"
#include "reference/compare.h"
#include "reference/numerics_profile.h"
#include "reference/oracle.h"

namespace mladcp {

// Half the smallest subnormal of bf16; fp32's is smaller.
inline constexpr double kHalfSubnormal = 0x1p-134;

// Half an ulp relative to the value: 2^-8 bf16, 2^-24 fp32, 2^-4 e4m3. InvalidArgument otherwise.
double unit_roundoff(DType dtype);

// One rounding to a format of that unit roundoff, of a value that may itself be `error` off.
double rounding(double unit, double value, double error);

// Absorb and value projection, rounded once to `out`.
Expected expect_products(const HeadProducts& products, DType out, const Accumulator& accumulator);

// What the roundings of a walk's one fp32 sum of P can add up to, relative to it, where `keys`
// equal weights round the same way each time; 0 for a profile without such a sum. docs/numerics.md.
double one_way_sum_error(const NumericsProfile& profile, std::int64_t keys);

KeyErrors key_errors(const NumericsProfile& profile, std::int64_t width);

struct ExpectedAttention {
  Expected out;  // [T, H, L]
  Expected lse;  // [T, H]
};

// How partials of the ranks become one.
struct CombineRounding {
  DType partial = DType::kBF16;  // what attention returns
  DType sent = DType::kBF16;     // dtype of the weighted partials of ag_rs, and of their sum
  int sum_roundings = 1;         // of the sum to `sent`: 1 in process, up to N - 1 on a ring
  bool weighted_before = true;   // ag_rs; false: the a2a merges round only their result
  DType out = DType::kBF16;
};

struct ExpectedDecode {
  std::vector<ExpectedAttention> per_set;  // what each rank's attention should return
  ExpectedAttention combined;              // over all sets, end to end
};

// Attention by every set (rank) and what combining them should give, all heads. Rows that see
// nothing: out 0 and lse -inf, exactly.
ExpectedDecode expect_decode(const OracleProblem& problem, const NumericsProfile& profile,
                             const CombineRounding& combine, int threads);

// Combine stages from the tensors they were given.
//   corrected: partial [T, H, X] times its weight among lses [N, T, H]
Expected expect_corrected(const TensorView& partial, const TensorView& lses, int rank, DType out);
//   sum over inputs of equal shape, rounded `roundings` times on the way
Expected expect_sum(std::span<const TensorView> inputs, DType out, int roundings);
//   merged: partials [N, T, H, X], lses [N, T, H]
ExpectedAttention expect_merged(const TensorView& partials, const TensorView& lses, DType out);

}  // namespace mladcp
