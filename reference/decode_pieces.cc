#include "reference/decode_pieces.h"

#include <algorithm>
#include <span>
#include <string>

#include "core/error.h"
#include "core/scheduler.h"
#include "reference/host_rows.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(std::int64_t part, const char* field, std::int64_t got,
                         std::int64_t limit) {
  throw InvalidArgument("schedule part " + std::to_string(part) + ": " + field + " = " +
                        std::to_string(got) + " must lie in [0, " + std::to_string(limit) +
                        "); the schedule was built for another step");
}

void expect_range(std::int64_t part, const char* field, std::int64_t got, std::int64_t limit) {
  if (got < 0 || got >= limit) refuse(part, field, got, limit);
}

// Cumulative from 0: only then does a split belong to one request.
void expect_cumulative(const TensorView& num_splits) {
  for (std::int64_t b = 0; b < num_splits.size(0); ++b) {
    const std::int64_t before = b == 0 ? 0 : index_at(num_splits, b - 1);
    const std::int64_t value = index_at(num_splits, b);
    if (b == 0 ? value == 0 : value >= before) continue;
    throw InvalidArgument("num_splits[" + std::to_string(b) + "] = " + std::to_string(value) +
                          ": must ascend from 0; the schedule was built for another step");
  }
}

}  // namespace

std::vector<DecodePiece> read_schedule(const ScheduleTensors& schedule,
                                       const std::vector<std::int64_t>& key_count) {
  const auto requests = static_cast<std::int64_t>(key_count.size());
  expect_host(schedule.parts);
  expect_host(schedule.num_splits);
  expect(schedule.parts, DType::kI32, {schedule.parts.size(0), 8});
  expect(schedule.num_splits, DType::kI32, {requests + 1});
  expect_contiguous(schedule.parts);
  expect_cumulative(schedule.num_splits);
  const std::int64_t block_keys = ScheduleParams{}.block;
  std::vector<DecodePiece> pieces;
  const std::span parts(schedule.parts.as<const std::int32_t>(),
                        static_cast<std::size_t>(schedule.parts.elements()));
  for (std::int64_t p = 0; p < schedule.parts.size(0); ++p) {
    const SchedulePart part = read_part(parts, p);
    if (is_idle(part, requests, ScheduleDialect::kBlocks)) continue;
    expect_range(p, "begin request", part.begin_request, requests);
    expect_range(p, "end request", part.end_request, requests);
    for (std::int64_t b = part.begin_request; b <= part.end_request; ++b) {
      const std::int64_t keys = key_count[static_cast<std::size_t>(b)];
      const std::int64_t first = b == part.begin_request ? part.begin : 0;
      const std::int64_t split_in_request = b == part.begin_request ? part.begin_split : 0;
      const std::int64_t splits =
          index_at(schedule.num_splits, b + 1) - index_at(schedule.num_splits, b);
      expect_range(p, "split", split_in_request, splits);
      expect_range(p, "begin block", first, std::int64_t{1} << 31);
      const std::int64_t end =
          b == part.end_request ? std::clamp<std::int64_t>(part.end * block_keys, 0, keys) : keys;
      const std::int64_t begin = std::min(first * block_keys, end);
      pieces.push_back({b, index_at(schedule.num_splits, b) + split_in_request, begin, end});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const DecodePiece& a, const DecodePiece& b) { return a.split < b.split; });
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].split == pieces[i - 1].split) {
      throw InvalidArgument("schedule: split " + std::to_string(pieces[i].split) + " of request " +
                            std::to_string(pieces[i].request) + " is written by two parts");
    }
  }
  return pieces;
}

}  // namespace mladcp
