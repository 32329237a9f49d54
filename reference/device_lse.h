// The LSE of an e4m3 wgmma kernel, by the bit-exact model of its tensor core.
#pragma once

#include "reference/error_bounds.h"
#include "reference/oracle.h"

namespace mladcp {

// lse [T, H] over the keys of one set: dot products of e4m3 codes as wgmma gives them, one chain
// over all channels in order (reference/hopper_fp8.h), the rest in fp64. Bound: 2e-6 + 2^-22 |lse|
// for the fp32 arithmetic round the product, and one_way_sum_error of the profile; -inf, exactly,
// for no key. InvalidArgument unless
// query and keys are e4m3 and contiguous, and when the problem has no such set.
Expected expect_device_lse(const OracleProblem& problem, const NumericsProfile& profile,
                           std::int64_t set, int threads);

}  // namespace mladcp
