#include "core/schedule_work.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

#include "core/error.h"

namespace mladcp {

std::vector<SchedulePiece> schedule_pieces(const Schedule& schedule,
                                           std::span<const std::int32_t> lengths,
                                           std::int64_t block) {
  const bool tokens = schedule.dialect == ScheduleDialect::kTokens;
  const std::int64_t unit = tokens ? 1 : block;  // keys of one step of a position
  std::vector<SchedulePiece> pieces;
  for (std::int64_t p = 0; p < schedule.num_parts(); ++p) {
    const SchedulePart part = read_part(schedule.parts, p);
    if (is_idle(part, schedule.requests(), schedule.dialect)) continue;
    for (std::int64_t r = part.begin_request; r <= part.end_request; ++r) {
      const std::int64_t length = lengths[r];
      const std::int64_t begin = r == part.begin_request ? part.begin * unit : 0;
      const std::int64_t end = r == part.end_request ? std::min(part.end * unit, length) : length;
      const std::int64_t keys = end - begin;
      pieces.push_back({p, r, scheduled_blocks(keys, schedule.dialect, block), keys});
    }
  }
  return pieces;
}

std::vector<std::int64_t> part_loads(const Schedule& schedule,
                                     std::span<const std::int32_t> lengths,
                                     const ScheduleParams& params) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(schedule.num_parts()), 0);
  for (const SchedulePiece& piece : schedule_pieces(schedule, lengths, params.block)) {
    loads[piece.part] += piece.blocks + params.overhead_blocks;
  }
  return loads;
}

std::int64_t attention_flops(std::int64_t row_keys, const AttentionWorkShape& shape) {
  return 2 * shape.heads * row_keys * (2 * shape.latent + shape.rope);
}

std::int64_t attention_bytes(std::int64_t keys, std::int64_t requests,
                             const AttentionWorkShape& shape) {
  const std::int64_t width = shape.latent + shape.rope;
  const std::int64_t rows = requests * shape.q_len * shape.heads;
  return keys * width * shape.cache_element_bytes + rows * width * shape.query_element_bytes +
         rows * shape.latent * 2;
}

std::int64_t partial_bytes(std::span<const std::int32_t> num_splits,
                           const AttentionWorkShape& shape) {
  std::int64_t partials = 0;
  for (std::size_t b = 0; b + 1 < num_splits.size(); ++b) {
    const std::int64_t splits = num_splits[b + 1] - num_splits[b];
    if (splits > 1) partials += splits;
  }
  constexpr std::int64_t kWriteAndRead = 2;
  return kWriteAndRead * partials * shape.q_len * shape.heads * (shape.latent + 1) * 4;
}

double SmTimeline::mean_load() const {
  if (sm_load.empty()) return 0;
  const std::int64_t sum = std::accumulate(sm_load.begin(), sm_load.end(), std::int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(sm_load.size());
}

double SmTimeline::imbalance() const {
  const double mean = mean_load();
  return mean == 0 ? 0 : static_cast<double>(makespan) / mean;
}

SmTimeline run_on_sms(std::span<const std::int64_t> loads, std::int64_t tiles,
                      std::int64_t num_sms) {
  if (num_sms < 1 || tiles < 1) {
    throw InvalidArgument("run_on_sms: num_sms is " + std::to_string(num_sms) + ", tiles is " +
                          std::to_string(tiles) + ", both must be at least 1");
  }
  using FreeAt = std::pair<std::int64_t, std::int64_t>;  // time, SM
  std::priority_queue<FreeAt, std::vector<FreeAt>, std::greater<>> free;
  for (std::int64_t sm = 0; sm < num_sms; ++sm) free.emplace(0, sm);

  SmTimeline timeline;
  timeline.sm_load.assign(static_cast<std::size_t>(num_sms), 0);
  for (std::int64_t p = 0; p < static_cast<std::int64_t>(loads.size()); ++p) {
    if (loads[p] == 0) continue;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const auto [begin, sm] = free.top();
      free.pop();
      const std::int64_t end = begin + loads[p];
      free.emplace(end, sm);
      timeline.runs.push_back({sm, p, tile, begin, end});
      timeline.sm_load[sm] += loads[p];
      timeline.makespan = std::max(timeline.makespan, end);
    }
  }
  return timeline;
}

}  // namespace mladcp
