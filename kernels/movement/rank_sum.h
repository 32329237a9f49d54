// Sums over ranks for reductions of collectives.
#pragma once

#include <span>

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

constexpr int kMostSummedRanks = 64;

// out[...] = round(((in[0] + in[1]) + in[2]) + ...), in fp32, each element rounded once. Inputs all
// fp32 or all bf16, out fp32 or bf16, any strides. InvalidArgument otherwise; Unsupported beyond
// kMostSummedRanks inputs.
void launch_rank_sum(const TensorView& out, std::span<const TensorView> inputs, Stream stream);

}  // namespace mladcp
