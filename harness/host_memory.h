// Whether the ranks that a run simulates fit this machine: asked before it, since a system that has
// no more memory ends the program without a word.
#pragma once

#include "harness/scenario.h"

namespace mladcp {

// Bytes of host memory that a decode step's ranks hold at once, at least; 0 where they do not all
// live in this process, or take turns. N ranks, T rows, Hg gathered heads, widths D and L:
//   2 N T Hg (D * query bytes + 2 L + 4 N)    gathered query, bf16 partial, fp32 LSEs of all ranks
// twice, in the workspace (core/decode_workspace.h) and as the copies that are judged. The query is
// gathered where N > 1, the LSEs besides with ag_rs alone.
double least_host_bytes(const Scenario& scenario);

// InvalidArgument naming fields, bytes and remedy where that is more than this machine has.
void expect_host_memory(const Scenario& scenario);

}  // namespace mladcp
