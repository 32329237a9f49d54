// The collectives a step must make, in order, derived from the design rather than from the code
// that makes them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/chunk_plan.h"
#include "core/collective.h"
#include "core/config.h"
#include "core/kv_cache.h"

namespace mladcp {

// What every rank calls in one decode step of `rows` query rows; empty for N == 1.
std::vector<CollectiveCall> expected_decode_collectives(const ParallelConfig& config,
                                                        const MlaDims& dims, std::int64_t rows);

// In one chunked prefill: every chunk's rows, padded to whole runs; empty for N == 1.
std::vector<CollectiveCall> expected_prefill_collectives(const ParallelConfig& config,
                                                         const MlaDims& dims,
                                                         const ChunkPlan& plan);

}  // namespace mladcp
