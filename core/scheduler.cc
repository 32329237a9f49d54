#include "core/scheduler.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/ceil_div.h"
#include "core/dtype.h"
#include "core/error.h"

namespace mladcp {
namespace {

void expect_positive(const char* field, std::int64_t value) {
  if (value < 1) {
    throw InvalidArgument(std::string("schedule: ") + field + " is " + std::to_string(value) +
                          ", must be at least 1");
  }
}

void check_params(const ScheduleParams& params) {
  expect_positive("block", params.block);
  if (params.overhead_blocks < 0) {
    throw InvalidArgument("schedule: overhead_blocks is " + std::to_string(params.overhead_blocks) +
                          ", must be at least 0");
  }
}

// How far the walk over the requests has come: the first block no part has taken yet.
struct Progress {
  std::int64_t request = 0;
  std::int64_t block = 0;
  std::int64_t split = 0;  // parts that already worked on `request`
};

std::span<std::int32_t> int32_span(const TensorView& view) {
  return {view.as<std::int32_t>(), static_cast<std::size_t>(view.elements())};
}

}  // namespace

std::string_view name(ScheduleDialect dialect) {
  return dialect == ScheduleDialect::kTokens ? "tokens" : "blocks";
}

ScheduleDialect schedule_dialect_from_name(std::string_view text) {
  if (text == "tokens") return ScheduleDialect::kTokens;
  if (text == "blocks") return ScheduleDialect::kBlocks;
  throw InvalidArgument("dialect '" + std::string(text) + "' is not known; use tokens or blocks");
}

SchedulePart read_part(std::span<const std::int32_t> parts, std::int64_t index) {
  const std::int32_t* row = parts.data() + index * kPartFields;
  return {row[0], row[1], row[2], row[3], row[4]};
}

bool is_idle(const SchedulePart& part, std::int64_t requests, ScheduleDialect dialect) {
  return part.begin_request == (dialect == ScheduleDialect::kTokens ? requests : -1);
}

std::int64_t query_tiles(std::int64_t heads, std::int64_t q_len, std::int64_t h_kv) {
  expect_positive("heads", heads);
  expect_positive("q_len", q_len);
  expect_positive("h_kv", h_kv);
  if (heads % h_kv != 0) {
    throw InvalidArgument("schedule: heads is " + std::to_string(heads) +
                          ", must be a multiple of h_kv " + std::to_string(h_kv));
  }
  return ceil_div(q_len * (heads / h_kv), kQueryTileRows);
}

std::int64_t num_sm_parts(std::int64_t num_sms, std::int64_t heads, std::int64_t q_len,
                          std::int64_t h_kv) {
  expect_positive("num_sms", num_sms);
  const std::int64_t tiles = query_tiles(heads, q_len, h_kv);
  return std::max<std::int64_t>(1, num_sms / h_kv / tiles);
}

std::int64_t scheduled_blocks(std::int64_t length, ScheduleDialect dialect, std::int64_t block) {
  const std::int64_t blocks = ceil_div(length, block);
  return dialect == ScheduleDialect::kBlocks ? std::max<std::int64_t>(1, blocks) : blocks;
}

std::int64_t part_payload(std::span<const std::int32_t> lengths, std::int64_t num_parts,
                          ScheduleDialect dialect, const ScheduleParams& params) {
  check_params(params);
  expect_positive("number of parts", num_parts);
  const auto requests = static_cast<std::int64_t>(lengths.size());
  if (requests > kMaxScheduledRequests) {
    throw InvalidArgument("schedule: lengths has " + std::to_string(requests) +
                          " requests, at most " + std::to_string(kMaxScheduledRequests) +
                          " can be scheduled; split the batch");
  }
  std::int64_t total = 0;
  for (std::int64_t b = 0; b < requests; ++b) {
    if (lengths[b] < 0) {
      throw InvalidArgument("schedule: lengths[" + std::to_string(b) + "] is " +
                            std::to_string(lengths[b]) + ", must be at least 0");
    }
    total += scheduled_blocks(lengths[b], dialect, params.block) + params.overhead_blocks;
  }
  if (total > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument("schedule: the batch costs " + std::to_string(total) +
                          " blocks, at most 2147483647 can be scheduled; split the batch or lower "
                          "the overhead of " +
                          std::to_string(params.overhead_blocks) + " blocks a request");
  }
  return ceil_div(total, num_parts) + params.overhead_blocks;
}

void build_schedule(std::span<std::int32_t> parts, std::span<std::int32_t> num_splits,
                    std::span<const std::int32_t> lengths, ScheduleDialect dialect,
                    const ScheduleParams& params) {
  const auto requests = static_cast<std::int64_t>(lengths.size());
  const std::int64_t num_parts = static_cast<std::int64_t>(parts.size()) / kPartFields;
  if (static_cast<std::int64_t>(parts.size()) != num_parts * kPartFields) {
    throw InvalidArgument("schedule: parts has " + std::to_string(parts.size()) +
                          " numbers, must be a multiple of 8");
  }
  if (num_splits.size() != lengths.size() + 1) {
    throw InvalidArgument("schedule: num_splits has " + std::to_string(num_splits.size()) +
                          " entries, must have " + std::to_string(requests + 1) +
                          ", one more than lengths");
  }
  const std::int64_t payload = part_payload(lengths, num_parts, dialect, params);
  const std::int64_t overhead = params.overhead_blocks;
  const bool tokens = dialect == ScheduleDialect::kTokens;
  const std::int64_t unit = tokens ? params.block : 1;

  Progress at;
  num_splits[0] = 0;
  for (std::int64_t p = 0; p < num_parts; ++p) {
    std::int32_t* row = parts.data() + p * kPartFields;
    std::fill_n(row, kPartFields, 0);
    row[0] = static_cast<std::int32_t>(at.request == requests && !tokens ? -1 : at.request);
    row[1] = static_cast<std::int32_t>(at.block * unit);
    row[4] = static_cast<std::int32_t>(at.split);

    std::int64_t left = payload;
    while (at.request < requests) {
      const std::int64_t rest =
          scheduled_blocks(lengths[at.request], dialect, params.block) - at.block;
      if (left < rest + overhead) {
        if (left > overhead) {
          at.block += left - overhead;
          ++at.split;
        }
        break;
      }
      left -= rest + overhead;
      num_splits[at.request + 1] = num_splits[at.request] + static_cast<std::int32_t>(at.split) + 1;
      at = {at.request + 1, 0, 0};
    }

    if (at.block > 0) {
      row[2] = static_cast<std::int32_t>(at.request);
      row[3] = static_cast<std::int32_t>(at.block * unit);
    } else {
      row[2] = static_cast<std::int32_t>(at.request - 1);
      const std::int64_t last = at.request == 0 ? 0 : lengths[at.request - 1];
      row[3] = static_cast<std::int32_t>(tokens ? last : ceil_div(last, params.block));
    }
  }
}

void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                    ScheduleDialect dialect, const ScheduleParams& params) {
  const std::int64_t requests = lengths.rank() == 1 ? lengths.size(0) : 0;
  const std::int64_t num_parts = schedule.parts.rank() == 2 ? schedule.parts.size(0) : 0;
  expect(lengths, DType::kI32, {requests});
  expect(schedule.parts, DType::kI32, {num_parts, kPartFields});
  expect(schedule.num_splits, DType::kI32, {requests + 1});
  expect_contiguous(lengths);
  expect_contiguous(schedule.parts);
  expect_contiguous(schedule.num_splits);
  build_schedule(int32_span(schedule.parts), int32_span(schedule.num_splits), int32_span(lengths),
                 dialect, params);
}

Schedule make_schedule(std::span<const std::int32_t> lengths, const ScheduleShape& shape,
                       ScheduleDialect dialect, const ScheduleParams& params) {
  const std::int64_t num_parts =
      num_sm_parts(params.num_sms, shape.heads, shape.q_len, params.h_kv);
  Schedule schedule;
  schedule.dialect = dialect;
  schedule.parts.resize(static_cast<std::size_t>(num_parts * kPartFields));
  schedule.num_splits.resize(lengths.size() + 1);
  build_schedule(schedule.parts, schedule.num_splits, lengths, dialect, params);
  return schedule;
}

}  // namespace mladcp
