// The LSE of an e4m3 wgmma kernel, by the bit-exact model of its tensor core.
#pragma once

#include "reference/error_bounds.h"
#include "reference/oracle.h"

namespace mladcp {

// lse [T, H] over all keys of set 0 (problem.sets == 1): dot products of e4m3 codes as wgmma gives
// them (reference/hopper_fp8.h), the rest in fp64. Bound: 2e-6 + 2^-22 |lse|, for the fp32
// arithmetic round the product. InvalidArgument unless query and keys are e4m3 and contiguous.
Expected expect_device_lse(const OracleProblem& problem);

}  // namespace mladcp
