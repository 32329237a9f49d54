// The tile schedule of core/scheduler.h on the GPU, bit for bit: one launch, capturable in a graph,
// into given buffers, so that a captured step replays with the lengths of the day.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/scheduler.h"

namespace mladcp {

struct MetadataParams {
  const std::int32_t* lengths = nullptr;  // [B]; negative ones count as 0
  std::int32_t* parts = nullptr;          // [P, 8], 16-byte aligned
  std::int32_t* num_splits = nullptr;     // [B + 1]
  std::int32_t requests = 0;              // B
  std::int32_t num_parts = 1;             // P
  std::int32_t block = 64;
  std::int32_t overhead_blocks = 5;
  ScheduleDialect dialect = ScheduleDialect::kBlocks;
};

inline constexpr std::int32_t kMaxMetadataOverhead = 32;
inline constexpr std::int32_t kMaxMetadataParts = 1023;

// Unsupported: overhead_blocks 0 or above kMaxMetadataOverhead, more parts than kMaxMetadataParts,
// or more shared memory than the card has (it grows with B and with overhead * P^2 / 2). The
// lengths are not seen here: their cost must stay below 2^30 blocks.
void launch_metadata(const MetadataParams& params, Stream stream);

// The same on contiguous int32 tensors of one CUDA device, sizes checked as in build_schedule.
void build_schedule_on_device(const ScheduleTensors& schedule, const TensorView& lengths,
                              ScheduleDialect dialect, const ScheduleParams& params, Stream stream);

}  // namespace mladcp
