// What a schedule costs: load per part, FLOPs, bytes, and how long the card takes when its SMs run
// the parts. Exact integers from the schedule; the unit of time is one block of keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/scheduler.h"

namespace mladcp {

// One part's work on one request.
struct SchedulePiece {
  std::int64_t part = 0;
  std::int64_t request = 0;
  std::int64_t blocks = 0;  // an empty request: 0 (tokens) or 1 (blocks)
  std::int64_t keys = 0;
};

// In the order in which the parts walk them. Of a valid schedule; see reference/schedule_laws.h.
std::vector<SchedulePiece> schedule_pieces(const Schedule& schedule,
                                           std::span<const std::int32_t> lengths,
                                           std::int64_t block);

// Sum of blocks + overhead over each part's pieces; 0 for an idle part. [P]
std::vector<std::int64_t> part_loads(const Schedule& schedule,
                                     std::span<const std::int32_t> lengths,
                                     const ScheduleParams& params);

// The sizes that FLOPs and bytes depend on.
struct AttentionWorkShape {
  std::int64_t heads = 128;  // gathered
  std::int64_t q_len = 1;
  std::int64_t latent = 512;             // L
  std::int64_t rope = 64;                // R
  std::int64_t cache_element_bytes = 1;  // e4m3 1, bf16 2
  std::int64_t query_element_bytes = 1;
};

// 2 * heads * row_keys * (D + L): Q K^T over D = L + R, P V over L. row_keys: sum over query rows
// of the keys each sees.
std::int64_t attention_flops(std::int64_t row_keys, const AttentionWorkShape& shape);

// Cache rows of `keys` read once, q of `requests` read, out (bf16) written once.
std::int64_t attention_bytes(std::int64_t keys, std::int64_t requests,
                             const AttentionWorkShape& shape);

// fp32 partials (out and LSE) of requests that more than one part works on: written by the parts,
// read by the combine.
std::int64_t partial_bytes(std::span<const std::int32_t> num_splits,
                           const AttentionWorkShape& shape);

// One thread block on its SM.
struct SmRun {
  std::int64_t sm = 0;
  std::int64_t part = 0;
  std::int64_t tile = 0;
  std::int64_t begin = 0;  // blocks since the launch
  std::int64_t end = 0;
};

struct SmTimeline {
  std::vector<SmRun> runs;            // in launch order; parts without load are left out
  std::vector<std::int64_t> sm_load;  // [num_sms]
  std::int64_t makespan = 0;          // blocks

  double mean_load() const;
  double imbalance() const;  // makespan / mean load; 1 is perfect, 0 when there is no work
};

// Thread blocks are launched part by part, `tiles` of each, one at a time on an SM; the next one
// goes to the SM that is free first (lowest index among equals). `tiles` is what the kernel
// launches for the heads it really sees, whatever heads the schedule was built for.
SmTimeline run_on_sms(std::span<const std::int64_t> loads, std::int64_t tiles,
                      std::int64_t num_sms);

}  // namespace mladcp
