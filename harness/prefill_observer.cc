#include "harness/prefill_observer.h"

namespace mladcp {

void ObservedCacheOps::gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                             const TensorView& block_table,
                                             const ContextChunkTensors& chunk, Stream stream) {
  next().gather_and_dequantize(out, cache, block_table, chunk, stream);
  observer_.saw_local_rows(out, stream);
}

void ObservedCacheOps::reorganise(const TensorView& out, const TensorView& gathered,
                                  const TensorView& source_rows, Stream stream) {
  next().reorganise(out, gathered, source_rows, stream);
  observer_.saw_context_rows(out, stream);
}

void ObservedAttentionOps::causal(const TensorView& out, const TensorView& lse,
                                  const TensorView& query, const TensorView& key,
                                  const TensorView& value, const TensorView& cu_rows,
                                  std::int64_t max_rows, float softmax_scale, Stream stream) {
  next().causal(out, lse, query, key, value, cu_rows, max_rows, softmax_scale, stream);
  observer_.saw_causal(out, lse, stream);
}

void ObservedAttentionOps::context(const TensorView& out, const TensorView& lse,
                                   const TensorView& query, const TensorView& key,
                                   const TensorView& value, const TensorView& cu_rows,
                                   std::int64_t max_rows, const TensorView& cu_context,
                                   float softmax_scale, Stream stream) {
  next().context(out, lse, query, key, value, cu_rows, max_rows, cu_context, softmax_scale, stream);
  observer_.saw_partial(out, lse, stream);
}

void ObservedCombineOps::merge_into(const TensorView& running, const TensorView& running_lse,
                                    const TensorView& partial, const TensorView& partial_lse,
                                    Stream stream) {
  observer_.before_merge(running, running_lse, stream);
  next().merge_into(running, running_lse, partial, partial_lse, stream);
  observer_.after_merge(running, running_lse, stream);
}

void ObservedCollective::run(const CollectiveCall& call, const TensorView& out,
                             const TensorView& in, Stream stream) {
  forward(call, out, in, stream);
  if (call.stage == "context") observer_.saw_gathered_rows(out, stream);
}

}  // namespace mladcp
