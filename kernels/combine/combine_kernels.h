// Combining the partial results of ranks by their LSE. The laws are CombineOps'; shapes are checked
// by the caller.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

constexpr int kMostMergedRanks = 64;

void launch_mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                       Stream stream);

void launch_correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
                    int rank, Stream stream);

void launch_merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
                  const TensorView& lses, Stream stream);

void launch_merge_into(const TensorView& running, const TensorView& running_lse,
                       const TensorView& partial, const TensorView& partial_lse, Stream stream);

void launch_pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
                 Stream stream);
void launch_unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
                   Stream stream);

}  // namespace mladcp
