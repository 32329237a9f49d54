#include "core/decode.h"

#include <string>

#include "core/combine.h"
#include "core/error.h"

namespace mladcp {
namespace {

// Stages 2 to 4: from this rank's heads to the query attention sees.
Query prepare_query(const ParallelConfig& config, const DecodeInputs& inputs,
                    const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
                    Stream stream) {
  const TensorView latent = workspace.absorbed();
  ops.query.absorb(latent, inputs.q_nope, inputs.w_uk, stream);
  const TensorView local = workspace.local_query();
  const bool gathers = config.dcp > 1 && !config.replicate_query;
  if (config.quantized_query()) {
    ops.query.concat_quantize(local, latent, inputs.q_rope, config.q_scale, stream);
  } else if (gathers) {
    ops.query.concat(local, latent, inputs.q_rope, stream);
  } else {
    return QueryPair{latent, inputs.q_rope};
  }
  if (!gathers) return local;
  // Quantised before it travels: half the bytes, and every rank attends to the same codes.
  collective.all_gather(workspace.gathered_query(), local, 1, stream, "query");
  return workspace.gathered_query();
}

// Stages 5 and 6: this rank's shard for all gathered heads.
void attend(const ParallelConfig& config, float softmax_scale, const Query& query,
            const KvCache& cache, const DecodeWorkspace& workspace, const Ops& ops, Stream stream) {
  const DecodeRows rows = workspace.plan_rows();
  // The kernel runs N * H heads, so its tiles do; FP8 or not. It needs the plan alone, not the
  // query.
  workspace.side().run_beside(stream, [&](Stream side) {
    ops.attention.build_schedule(workspace.schedule(), rows.lengths, workspace.schedule_shape(),
                                 side);
  });
  ops.attention.decode(workspace.partial(), workspace.lse(), query, cache, rows,
                       workspace.schedule(), {softmax_scale, config.q_scale},
                       workspace.attention_scratch(), stream);
  ops.combine.mask_empty(workspace.partial(), workspace.lse(), rows.visible, stream);
}

void expect_group(const ParallelConfig& config, const Collective& collective) {
  if (collective.world_size() == config.dcp) return;
  throw InvalidArgument("dcp = " + std::to_string(config.dcp) + " but the collective has " +
                        std::to_string(collective.world_size()) + " ranks");
}

}  // namespace

void decode(const ParallelConfig& config, float softmax_scale, const DecodeInputs& inputs,
            const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
            Stream stream) {
  expect_group(config, collective);
  workspace.side().mark(stream);
  ops.cache.write(inputs.cache, inputs.kv_c, inputs.k_pe, workspace.slots(), stream);
  const Query query = prepare_query(config, inputs, workspace, ops, collective, stream);
  attend(config, softmax_scale, query, inputs.cache, workspace, ops, stream);

  TensorView partial = workspace.partial();
  if (config.project_before_merge) {  // linear, so the order does not matter; then X is Vd already
    ops.query.project_value(workspace.projected_partial(), partial, inputs.w_uv, stream);
    partial = workspace.projected_partial();
  }
  if (config.dcp > 1) combine_partials(config, partial, workspace, ops, collective, stream);
  if (!config.project_before_merge) {
    const TensorView merged = config.dcp > 1 ? workspace.combined() : partial;
    ops.query.project_value(workspace.output(), merged, inputs.w_uv, stream);
  }
}

}  // namespace mladcp
