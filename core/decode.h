// One decode step of MLA under DCP on one rank: the eight stages of docs/decode.md, written once
// against Ops and Collective.
#pragma once

#include "core/collective.h"
#include "core/config.h"
#include "core/decode_workspace.h"
#include "core/kv_cache.h"
#include "core/ops.h"

namespace mladcp {

// What a rank brings to a step. Query heads are this rank's H, or Hg with replicate_query.
struct DecodeInputs {
  TensorView q_nope;  // [T, query_heads, P] bf16
  TensorView q_rope;  // [T, query_heads, R] bf16, RoPE applied
  TensorView kv_c;    // [T, L] bf16, this step's latents
  TensorView k_pe;    // [T, R] bf16, RoPE applied
  TensorView w_uk;    // [query_heads, P, L] bf16
  TensorView w_uv;    // [H, L, Vd] bf16; [Hg, L, Vd] with project_before_merge
  KvCache cache;      // this rank's shard
};

// Runs the step on workspace's loaded plan; the result is workspace.output(). Enters every
// collective even when T == 0. N == 1 uses none. Ordered on `stream`, which the workspace's side
// stream leaves and joins again; nothing is allocated or synchronised. Errors: InvalidArgument for
// shapes and dtypes, those of the ops and the collective.
void decode(const ParallelConfig& config, float softmax_scale, const DecodeInputs& inputs,
            const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
            Stream stream);

}  // namespace mladcp
