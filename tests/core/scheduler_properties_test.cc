// Laws of the schedule that hold for any batch.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/scheduler.h"

namespace mladcp {
namespace {

// Empty, tiny, around a block's edge, long: in one batch.
rc::Gen<std::int32_t> any_length() {
  return rc::gen::oneOf(rc::gen::just<std::int32_t>(0), rc::gen::inRange<std::int32_t>(1, 5),
                        rc::gen::element<std::int32_t>(63, 64, 65, 127, 128, 129),
                        rc::gen::inRange<std::int32_t>(0, 2000),
                        rc::gen::inRange<std::int32_t>(0, 200000));
}

struct Batch {
  std::vector<std::int32_t> lengths;
  std::int64_t num_parts;
  ScheduleDialect dialect;
  ScheduleParams params;
};

Batch any_batch() {
  Batch batch;
  batch.lengths = *rc::gen::container<std::vector<std::int32_t>>(any_length());
  batch.num_parts = *rc::gen::inRange<std::int64_t>(1, 140);
  batch.dialect = *rc::gen::element(ScheduleDialect::kTokens, ScheduleDialect::kBlocks);
  batch.params.block = *rc::gen::element<std::int64_t>(1, 16, 64, 128);
  batch.params.overhead_blocks = *rc::gen::inRange<std::int64_t>(0, 9);
  return batch;
}

Schedule scheduled(const Batch& batch) {
  Schedule schedule;
  schedule.dialect = batch.dialect;
  schedule.parts.assign(static_cast<std::size_t>(batch.num_parts * kPartFields), 12345);
  schedule.num_splits.assign(batch.lengths.size() + 1, 12345);
  build_schedule(schedule.parts, schedule.num_splits, batch.lengths, batch.dialect, batch.params);
  return schedule;
}

// Lay the requests end to end, blocks and overhead. A part that starts at x ends at x + step, or at
// the last start of a request in (x + step, x + step + overhead]: the closed rule that lets the
// parts be computed in parallel (docs/scheduler.md).
TEST(SchedulerProperty, PartsAdvanceByStepAndSnapToStarts) {
  rc::check([] {
    Batch batch = any_batch();
    batch.params.overhead_blocks = std::max<std::int64_t>(1, batch.params.overhead_blocks);
    RC_PRE(!batch.lengths.empty());
    const Schedule schedule = scheduled(batch);
    const std::int64_t overhead = batch.params.overhead_blocks;
    const std::int64_t step =
        part_payload(batch.lengths, batch.num_parts, batch.dialect, batch.params) - overhead;
    std::vector<std::int64_t> starts = {0};
    for (const std::int32_t length : batch.lengths) {
      starts.push_back(starts.back() + overhead +
                       scheduled_blocks(length, batch.dialect, batch.params.block));
    }
    const std::int64_t unit = batch.dialect == ScheduleDialect::kTokens ? batch.params.block : 1;
    std::int64_t x = 0;
    for (std::int64_t p = 0; p < batch.num_parts; ++p) {
      const SchedulePart part = read_part(schedule.parts, p);
      if (is_idle(part, schedule.requests(), batch.dialect)) {
        RC_ASSERT(x == starts.back());
        continue;
      }
      RC_ASSERT(x == starts[part.begin_request] + part.begin / unit);
      const std::int64_t inside = x - starts[part.begin_request];
      RC_ASSERT(part.begin_split == (inside + step - 1) / step);
      const std::int64_t snap =
          *(std::upper_bound(starts.begin(), starts.end(), x + step + overhead) - 1);
      x = std::min(std::max(x + step, snap), starts.back());
    }
    RC_ASSERT(x == starts.back());
  });
}

TEST(SchedulerProperty, DialectsAgreeWithoutEmptyRequests) {
  rc::check([] {
    Batch batch = any_batch();
    for (std::int32_t& length : batch.lengths) length = std::max(length, 1);
    batch.dialect = ScheduleDialect::kTokens;
    const Schedule tokens = scheduled(batch);
    batch.dialect = ScheduleDialect::kBlocks;
    const Schedule blocks = scheduled(batch);
    RC_ASSERT(tokens.num_splits == blocks.num_splits);
    const std::int64_t block = batch.params.block;
    for (std::int64_t p = 0; p < batch.num_parts; ++p) {
      SchedulePart wanted = read_part(tokens.parts, p);
      if (is_idle(wanted, tokens.requests(), ScheduleDialect::kTokens)) {
        wanted.begin_request = -1;
      }
      wanted.begin = static_cast<std::int32_t>(wanted.begin / block);
      wanted.end = static_cast<std::int32_t>((wanted.end + block - 1) / block);
      RC_ASSERT(read_part(blocks.parts, p) == wanted);
    }
  });
}

TEST(SchedulerProperty, SplitsNeverExceedRequestsPlusParts) {
  rc::check([] {
    const Batch batch = any_batch();
    const Schedule schedule = scheduled(batch);
    RC_ASSERT(std::is_sorted(schedule.num_splits.begin(), schedule.num_splits.end()));
    RC_ASSERT(schedule.num_splits.back() <= schedule.requests() + batch.num_parts - 1);
    RC_ASSERT(schedule.num_splits.back() >= schedule.requests());
  });
}

}  // namespace
}  // namespace mladcp
