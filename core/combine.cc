#include "core/combine.h"

namespace mladcp {
namespace {

// Each rank weighs its own partial, so that a plain sum is the merge: up to N roundings to bf16, or
// one when the reduction runs in fp32.
void all_gather_reduce_scatter(const ParallelConfig& config, const TensorView& partial,
                               const DecodeWorkspace& workspace, const Ops& ops,
                               Collective& collective, Stream stream) {
  const TensorView lses = workspace.gathered_lse();  // [N, T, Hg]
  collective.all_gather(lses.merged(0), workspace.lse(), 0, stream, "lse");
  const TensorView corrected = workspace.corrected();
  ops.combine.correct(corrected, partial, lses, collective.rank(), stream);
  if (config.reduce_dtype == DType::kBF16) {
    collective.reduce_scatter(workspace.combined(), corrected, 1, stream, "output");
  } else {
    collective.reduce_scatter(workspace.reduced(), corrected, 1, stream, "output");
    ops.combine.round_to(workspace.combined(), workspace.reduced(), stream);
  }
}

// The owner of the heads merges all partials itself, in fp32: one rounding.
void all_to_all(const ParallelConfig& config, const TensorView& partial,
                const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
                Stream stream) {
  // [T, N * H, X] seen as [N, T, H, X]: block s holds the heads of rank s.
  const TensorView by_rank = partial.split(1, config.dcp).transposed(0, 1);
  const TensorView lse_by_rank = workspace.lse().split(1, config.dcp).transposed(0, 1);
  collective.all_to_all(workspace.partials(), by_rank, stream, "output");
  collective.all_to_all(workspace.partial_lses(), lse_by_rank, stream, "lse");
  ops.combine.merge(workspace.combined(), workspace.combined_lse(), workspace.partials(),
                    workspace.partial_lses(), stream);
}

void all_to_all_packed(const TensorView& partial, const DecodeWorkspace& workspace, const Ops& ops,
                       Collective& collective, Stream stream) {
  ops.combine.pack(workspace.packed_out(), partial, workspace.lse(), stream);
  collective.all_to_all(workspace.packed_in(), workspace.packed_out(), stream, "output");
  ops.combine.unpack(workspace.partials(), workspace.partial_lses(), workspace.packed_in(), stream);
  ops.combine.merge(workspace.combined(), workspace.combined_lse(), workspace.partials(),
                    workspace.partial_lses(), stream);
}

}  // namespace

void combine_partials(const ParallelConfig& config, const TensorView& partial,
                      const DecodeWorkspace& workspace, const Ops& ops, Collective& collective,
                      Stream stream) {
  switch (config.combine) {
    case Combine::kAllGatherReduceScatter:
      return all_gather_reduce_scatter(config, partial, workspace, ops, collective, stream);
    case Combine::kAllToAll:
      return all_to_all(config, partial, workspace, ops, collective, stream);
    case Combine::kAllToAllPacked:
      return all_to_all_packed(partial, workspace, ops, collective, stream);
  }
}

}  // namespace mladcp
