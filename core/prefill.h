// One chunked prefill of MLA under DCP on one rank (docs/prefill.md), written once against Ops and
// Collective. New tokens attend causally to themselves; the cached context, of which each rank
// holds a slice, is walked in chunks that fit the workspace.
#pragma once

#include "core/collective.h"
#include "core/config.h"
#include "core/kv_cache.h"
#include "core/ops.h"
#include "core/prefill_workspace.h"

namespace mladcp {

// What a rank brings to a step: its H heads' queries, all T new tokens, its shard of the cache.
struct PrefillInputs {
  TensorView query;  // [T, H, P + R] bf16, RoPE applied
  TensorView kv_c;   // [T, L] bf16, latents of the new tokens
  TensorView k_pe;   // [T, R] bf16, RoPE applied
  TensorView w_uk;   // [H, P, L] bf16
  TensorView w_uv;   // [H, L, Vd] bf16
  KvCache cache;     // this rank's shard
};

// Runs the step on workspace's loaded plan: stores the new tokens (slots), then computes, for each
// of their rows, one softmax over [dequantised context rows | raw new rows], causal among the new.
// Results: workspace.output(), and workspace.running() and running_lse() in fp32.
// Enters every collective whatever T is; with one rank there is none. The order of a request's
// context rows is the ranks' order, not that of positions: RoPE is applied, and context attention
// has no mask. Ordered on `stream`; nothing is allocated or synchronised.
// Errors: InvalidArgument for shapes and dtypes, those of the ops and the collective.
void prefill(const ParallelConfig& config, float softmax_scale, const PrefillInputs& inputs,
             const PrefillWorkspace& workspace, const Ops& ops, Collective& collective,
             Stream stream);

}  // namespace mladcp
