// One rank's chunked prefill of a test problem on a card.
#pragma once

#include "tests/kernels/gpu_test.h"
#include "tests/reference/prefill_problem.h"

namespace mladcp {

inline PrefillResult run_rank_on_card(const PrefillWorld& world, Collective& collective,
                                      Device& device, const Ops& ops, Stream stream) {
  const ParallelConfig config = config_of(world.shape());
  const auto up = [&](const TensorView& view) {
    return copied_to_device(copied_to_host(view, kHostStream), device, stream);
  };
  const PrefillInputs host = world.inputs(collective.rank());
  const Tensor query = up(host.query), kv_c = up(host.kv_c), k_pe = up(host.k_pe);
  const Tensor w_uk = up(host.w_uk), w_uv = up(host.w_uv), cache = up(host.cache.data);
  PrefillWorkspace workspace(device, config, world.shape().dims, world.limits());
  workspace.load(world.plan(collective.rank()), stream);
  prefill(config, world.shape().softmax_scale,
          {query, kv_c, k_pe, w_uk, w_uv, {cache.view(), host.cache.scale}}, workspace, ops,
          collective, stream);
  collective.synchronize(stream);
  return {copied_to_host(workspace.output(), stream), copied_to_host(workspace.running(), stream),
          copied_to_host(workspace.running_lse(), stream), workspace.chunks()};
}

}  // namespace mladcp
