// What the Hopper decode kernels ask of the schedule.
#pragma once

namespace mladcp {

// Blocks of overhead a request costs, for the schedule's builder (ScheduleParams::overhead_blocks):
// 4 with more than 32 query rows (tokens x heads) a request, where a split writes and merges much,
// else 2.
constexpr int sm90_decode_overhead_blocks(int max_rows_per_request, int num_heads) {
  return max_rows_per_request * num_heads > 32 ? 4 : 2;
}

}  // namespace mladcp
