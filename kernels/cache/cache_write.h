// Stores new tokens in the paged cache.
#pragma once

#include "core/device.h"
#include "core/kv_cache.h"
#include "core/tensor.h"

namespace mladcp {

// Cache row slots[t] = [kv_c[t] | k_pe[t]], quantised for an FP8 cache; negative slots are skipped.
// Shapes as in CacheOps::write, checked by the caller.
void launch_cache_write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                        const TensorView& slots, Stream stream);

}  // namespace mladcp
