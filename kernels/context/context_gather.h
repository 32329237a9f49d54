// Context rows for chunked prefill: out of the paged cache, and out of the gathered chunk.
#pragma once

#include "core/cache_ops.h"
#include "core/device.h"
#include "core/kv_cache.h"
#include "core/tensor.h"

namespace mladcp {

// The laws of CacheOps::gather_and_dequantize and CacheOps::reorganise; shapes checked by the
// caller.
void launch_gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                  const TensorView& block_table, const ContextChunkTensors& chunk,
                                  Stream stream);
void launch_reorganise(const TensorView& out, const TensorView& gathered,
                       const TensorView& source_rows, Stream stream);

}  // namespace mladcp
