// Stage 7: N partial results over disjoint keys become one, by one of several exchanges. A combine
// is one function in combine.cc, one enumerator in config.h and its tensors in the workspace.
#pragma once

#include "core/collective.h"
#include "core/config.h"
#include "core/decode_workspace.h"
#include "core/ops.h"

namespace mladcp {

// partial [T, Hg, X] bf16 and workspace.lse() [T, Hg] of every rank -> workspace.combined()
// [T, H, X] bf16 for this rank's heads. N > 1.
void combine_partials(const ParallelConfig& config, const TensorView& partial,
                      const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
                      Stream stream);

}  // namespace mladcp
