#include "harness/taps.h"

#include <utility>

#include "core/error.h"

namespace mladcp {

void TapStore::keep(const std::string& name, const TensorView& tensor, Stream stream) {
  tensors_[name] = copied_to_host(tensor, stream);
}

const TensorView& TapStore::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InvalidArgument("stage tensor '" + name + "' was never made");
  return found->second.view();
}

void TappingQueryOps::absorb(const TensorView& out, const TensorView& q_nope,
                             const TensorView& w_uk, Stream stream) {
  next().absorb(out, q_nope, w_uk, stream);
  store_.keep("absorb.out", out, stream);
}

void TappingQueryOps::concat(const TensorView& out, const TensorView& latent,
                             const TensorView& rope, Stream stream) {
  next().concat(out, latent, rope, stream);
  store_.keep("query.local", out, stream);
}

void TappingQueryOps::concat_quantize(const TensorView& out, const TensorView& latent,
                                      const TensorView& rope, float q_scale, Stream stream) {
  next().concat_quantize(out, latent, rope, q_scale, stream);
  store_.keep("query.local", out, stream);
}

void TappingQueryOps::project_value(const TensorView& out, const TensorView& latent,
                                    const TensorView& w_uv, Stream stream) {
  store_.keep("project.in", latent, stream);
  next().project_value(out, latent, w_uv, stream);
  store_.keep("project.out", out, stream);
}

void TappingAttentionOps::build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                                         const ScheduleShape& shape, Stream stream) {
  next().build_schedule(schedule, lengths, shape, stream);
  store_.keep("schedule.parts", schedule.parts, stream);
  store_.keep("schedule.num_splits", schedule.num_splits, stream);
}

void TappingAttentionOps::decode(const TensorView& out, const TensorView& lse, const Query& query,
                                 const KvCache& cache, const DecodeRows& rows,
                                 const ScheduleTensors& schedule, const DecodeScales& scales,
                                 const TensorView& workspace, Stream stream) {
  if (const auto* pair = std::get_if<QueryPair>(&query)) {
    store_.keep("attention.query_latent", pair->latent, stream);
    store_.keep("attention.query_rope", pair->rope, stream);
  } else {
    store_.keep("attention.query", std::get<TensorView>(query), stream);
  }
  next().decode(out, lse, query, cache, rows, schedule, scales, workspace, stream);
  store_.keep("attention.out", out, stream);
  store_.keep("attention.lse", lse, stream);
}

void TappingCombineOps::mask_empty(const TensorView& out, const TensorView& lse,
                                   const TensorView& visible, Stream stream) {
  next().mask_empty(out, lse, visible, stream);
  store_.keep("mask.out", out, stream);
  store_.keep("mask.lse", lse, stream);
}

void TappingCombineOps::correct(const TensorView& corrected, const TensorView& partial,
                                const TensorView& lses, int rank, Stream stream) {
  store_.keep("correct.in", partial, stream);  // before: it may work in place
  next().correct(corrected, partial, lses, rank, stream);
  store_.keep("correct.lses", lses, stream);
  store_.keep("correct.out", corrected, stream);
}

void TappingCombineOps::merge(const TensorView& out, const TensorView& lse,
                              const TensorView& partials, const TensorView& lses, Stream stream) {
  next().merge(out, lse, partials, lses, stream);
  store_.keep("merge.partials", partials, stream);
  store_.keep("merge.lses", lses, stream);
  store_.keep("combined.out", out, stream);
  store_.keep("combined.lse", lse, stream);
}

void TappingCombineOps::unpack(const TensorView& partials, const TensorView& lses,
                               const TensorView& packed, Stream stream) {
  next().unpack(partials, lses, packed, stream);
  store_.keep("unpack.partials", partials, stream);
  store_.keep("unpack.lses", lses, stream);
}

void TappingCombineOps::round_to(const TensorView& out, const TensorView& value, Stream stream) {
  next().round_to(out, value, stream);
  store_.keep("combined.out", out, stream);
}

void TappingCollective::run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                            Stream stream) {
  const std::string stage = std::string(name(call.op)) + "." + std::string(call.stage);
  store_.keep(stage + ".in", in, stream);
  forward(call, out, in, stream);
  store_.keep(stage + ".out", out, stream);
}

}  // namespace mladcp
