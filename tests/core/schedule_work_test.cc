#include "core/schedule_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

using ::testing::ElementsAre;

Schedule scheduled(const std::vector<std::int32_t>& lengths, std::int64_t num_parts,
                   ScheduleDialect dialect) {
  Schedule schedule;
  schedule.dialect = dialect;
  schedule.parts.resize(static_cast<std::size_t>(num_parts * kPartFields));
  schedule.num_splits.resize(lengths.size() + 1);
  build_schedule(schedule.parts, schedule.num_splits, lengths, dialect);
  return schedule;
}

TEST(PartLoads, CountBlocksAndOverheadOfEveryPiece) {
  const std::vector<std::int32_t> lengths = {4096, 0, 1};  // cuts at 21, 42, 63
  EXPECT_THAT(part_loads(scheduled(lengths, 4, ScheduleDialect::kBlocks), lengths, {}),
              ElementsAre(26, 26, 26, 1 + 5 + 1 + 5 + 1 + 5));
  // tokens: the empty request has no block, payload ceil(80 / 4) + 5 = 25, cuts at 20, 40, 60
  EXPECT_THAT(part_loads(scheduled(lengths, 4, ScheduleDialect::kTokens), lengths, {}),
              ElementsAre(25, 25, 25, 4 + 5 + 0 + 5 + 1 + 5));
  EXPECT_THAT(part_loads(scheduled({1}, 3, ScheduleDialect::kBlocks), std::vector<int>{1}, {}),
              ElementsAre(6, 0, 0));
}

TEST(SchedulePieces, HoldEveryKeyOnce) {
  const std::vector<std::int32_t> lengths = {1000, 0, 63, 64, 65, 7777};
  for (const ScheduleDialect dialect : {ScheduleDialect::kTokens, ScheduleDialect::kBlocks}) {
    const Schedule schedule = scheduled(lengths, 11, dialect);
    std::vector<std::int32_t> keys(lengths.size(), 0);
    std::vector<std::int32_t> pieces(lengths.size(), 0);
    for (const SchedulePiece& piece : schedule_pieces(schedule, lengths, 64)) {
      keys[piece.request] += static_cast<std::int32_t>(piece.keys);
      ++pieces[piece.request];
    }
    EXPECT_EQ(keys, lengths);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      EXPECT_EQ(pieces[b], schedule.num_splits[b + 1] - schedule.num_splits[b]) << b;
    }
  }
}

// FlashMLA's table counts 2 rows keys (576 + 512): B 128, S 4096, 128 heads is 238.5 us at
// 612 TFLOP/s and 1,376 GB/s.
TEST(AttentionWork, AgreesWithMeasuredRates) {
  const AttentionWorkShape shape;
  const std::int64_t keys = std::int64_t{128} * 4096;
  EXPECT_EQ(attention_flops(keys, shape), std::int64_t{2} * 128 * keys * (576 + 512));
  EXPECT_EQ(attention_flops(keys, shape) / 238 / 1'000'000, 613);
  EXPECT_EQ(attention_bytes(keys, 128, shape),
            keys * 576 + std::int64_t{128} * 128 * (576 + 2 * 512));
  EXPECT_EQ(attention_bytes(keys, 128, shape) / 238 / 1'000, 1379);
}

TEST(PartialBytes, OnlyOfRequestsThatAreCut) {
  AttentionWorkShape shape;
  shape.heads = 3;
  shape.q_len = 2;
  shape.latent = 7;
  EXPECT_EQ(partial_bytes(std::vector<std::int32_t>{0, 1, 2, 3}, shape), 0);
  EXPECT_EQ(partial_bytes(std::vector<std::int32_t>{0, 4, 5, 7}, shape), 2 * 6 * 6 * 8 * 4);
}

TEST(RunOnSms, OneWaveWhenThreadBlocksFit) {
  const SmTimeline timeline = run_on_sms(std::vector<std::int64_t>{7, 5, 0}, 2, 5);
  EXPECT_THAT(timeline.sm_load, ElementsAre(7, 7, 5, 5, 0));
  EXPECT_EQ(timeline.makespan, 7);
  EXPECT_EQ(timeline.runs.size(), 4u);  // the idle part costs nothing
  EXPECT_DOUBLE_EQ(timeline.imbalance(), 7.0 / 4.8);
}

TEST(RunOnSms, LaterThreadBlocksWaitForTheFirstFreeSm) {
  const SmTimeline timeline = run_on_sms(std::vector<std::int64_t>{9, 4, 3}, 1, 2);
  ASSERT_EQ(timeline.runs.size(), 3u);
  EXPECT_EQ(timeline.runs[2].sm, 1);
  EXPECT_EQ(timeline.runs[2].begin, 4);
  EXPECT_EQ(timeline.makespan, 9);
  EXPECT_THAT(timeline.sm_load, ElementsAre(9, 7));
}

TEST(RunOnSms, WorkIsConserved) {
  const std::vector<std::int64_t> loads = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  for (std::int64_t sms = 1; sms < 40; sms += 3) {
    const SmTimeline timeline = run_on_sms(loads, 3, sms);
    EXPECT_EQ(std::accumulate(timeline.sm_load.begin(), timeline.sm_load.end(), std::int64_t{0}),
              3 * 44);
    EXPECT_GE(timeline.makespan * sms, 3 * 44);
  }
  EXPECT_EQ(run_on_sms({}, 1, 4).imbalance(), 0);
  EXPECT_THROW(run_on_sms(loads, 0, 4), InvalidArgument);
  EXPECT_THROW(run_on_sms(loads, 1, 0), InvalidArgument);
}

// What building for local heads costs: 66 parts of 2 tiles fill the card once; 132 parts of 2 tiles
// come in two waves, pay the overhead twice and leave twice the partials to combine. Where whole
// requests fit the parts either way, it costs nothing.
TEST(RunOnSms, LocalHeadsNeedASecondWave) {
  const auto cost = [](const std::vector<std::int32_t>& lengths, std::int64_t heads) {
    const Schedule schedule = make_schedule(lengths, {heads, 1}, ScheduleDialect::kTokens);
    return std::pair(
        run_on_sms(part_loads(schedule, lengths, {}), query_tiles(128, 1), 132).makespan,
        schedule.num_splits.back());
  };
  EXPECT_EQ(cost({4808}, 128), std::pair(7L, 38));
  EXPECT_EQ(cost({4808}, 16), std::pair(12L, 76));
  const std::vector<std::int32_t> equal(128, 4096);
  EXPECT_EQ(cost(equal, 128), std::pair(138L, 128));
  EXPECT_EQ(cost(equal, 16), std::pair(138L, 128));
}

}  // namespace
}  // namespace mladcp
