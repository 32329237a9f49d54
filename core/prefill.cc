#include "core/prefill.h"

#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

void expect_inputs(const ParallelConfig& config, const PrefillInputs& inputs,
                   const PrefillWorkspace& workspace, const Collective& collective) {
  if (collective.world_size() != config.dcp) {
    throw InvalidArgument("dcp = " + std::to_string(config.dcp) + " but the collective has " +
                          std::to_string(collective.world_size()) + " ranks");
  }
  const MlaDims& dims = workspace.dims();
  const std::int64_t t = workspace.rows();
  const std::int64_t h = config.local_heads();
  expect(inputs.query, DType::kBF16, {t, h, dims.nope + dims.rope});
  expect(inputs.kv_c, DType::kBF16, {t, dims.latent});
  expect(inputs.k_pe, DType::kBF16, {t, dims.rope});
  expect(inputs.w_uk, DType::kBF16, {h, dims.nope, dims.latent});
  expect(inputs.w_uv, DType::kBF16, {h, dims.latent, dims.value});
}

// New tokens among themselves, from the raw rows: they are not read back from the cache, whose FP8
// would round them.
void attend_new_tokens(float softmax_scale, const PrefillInputs& inputs,
                       const PrefillWorkspace& workspace, const Ops& ops, Stream stream) {
  const std::int64_t t = workspace.rows();
  const TensorView key = workspace.key(t);
  const TensorView value = workspace.value(t);
  // A row is [latent | rope] of one "head".
  ops.query.concat(workspace.new_rows().split(1, 1), inputs.kv_c.split(1, 1),
                   inputs.k_pe.split(1, 1), stream);
  ops.query.project_keys_values(key, value, workspace.new_rows(), inputs.w_uk, inputs.w_uv, stream);
  ops.attention.causal(workspace.running(), workspace.running_lse(), inputs.query, key, value,
                       workspace.cu_rows(), workspace.max_rows(), softmax_scale, stream);
}

// The chunk's context rows of all ranks, without padding: [rows, D].
TensorView gather_chunk(std::int64_t c, const PrefillInputs& inputs,
                        const PrefillWorkspace& workspace, const Ops& ops, Collective& collective,
                        Stream stream) {
  const TensorView local = workspace.local_rows(c);
  // Dequantised before transport: the rows become bf16 anyway, and equal bits come out either way.
  ops.cache.gather_and_dequantize(local, inputs.cache, workspace.block_table(), workspace.chunk(c),
                                  stream);
  if (collective.world_size() == 1) return local;
  const TensorView gathered = workspace.gathered_rows(c);
  collective.all_gather(gathered, local, 0, stream, "context");
  const TensorView rows = workspace.context_rows(c);
  ops.cache.reorganise(rows, gathered, workspace.chunk(c).source_rows, stream);
  return rows;
}

}  // namespace

void prefill(const ParallelConfig& config, float softmax_scale, const PrefillInputs& inputs,
             const PrefillWorkspace& workspace, const Ops& ops, Collective& collective,
             Stream stream) {
  expect_inputs(config, inputs, workspace, collective);
  ops.cache.write(inputs.cache, inputs.kv_c, inputs.k_pe, workspace.slots(), stream);
  attend_new_tokens(softmax_scale, inputs, workspace, ops, stream);
  for (std::int64_t c = 0; c < workspace.chunks(); ++c) {
    const TensorView rows = gather_chunk(c, inputs, workspace, ops, collective, stream);
    const TensorView key = workspace.key(rows.size(0));
    const TensorView value = workspace.value(rows.size(0));
    ops.query.project_keys_values(key, value, rows, inputs.w_uk, inputs.w_uv, stream);
    ops.attention.context(workspace.partial(), workspace.partial_lse(), inputs.query, key, value,
                          workspace.cu_rows(), workspace.max_rows(), workspace.cu_context(c),
                          softmax_scale, stream);
    // A request without rows in this chunk has an empty partial: its result stays as it is.
    ops.combine.merge_into(workspace.running(), workspace.running_lse(), workspace.partial(),
                           workspace.partial_lse(), stream);
  }
  ops.combine.round_to(workspace.output(), workspace.running(), stream);
}

}  // namespace mladcp
