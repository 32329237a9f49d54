#include "core/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kTokens = ScheduleDialect::kTokens;
constexpr auto kBlocks = ScheduleDialect::kBlocks;

Schedule scheduled(const std::vector<std::int32_t>& lengths, std::int64_t num_parts,
                   ScheduleDialect dialect, const ScheduleParams& params = {}) {
  Schedule schedule;
  schedule.dialect = dialect;
  schedule.parts.assign(static_cast<std::size_t>(num_parts * kPartFields), -77);
  schedule.num_splits.assign(lengths.size() + 1, -77);
  build_schedule(schedule.parts, schedule.num_splits, lengths, dialect, params);
  return schedule;
}

std::vector<SchedulePart> parts_of(const Schedule& schedule) {
  std::vector<SchedulePart> parts;
  for (std::int64_t p = 0; p < schedule.num_parts(); ++p) {
    parts.push_back(read_part(schedule.parts, p));
  }
  return parts;
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

struct PartCount {
  std::int64_t heads_times_q;
  std::int64_t parts;
};

TEST(NumSmParts, NeverZeroWhenTilesOutnumberSms) {
  for (const PartCount& c :
       {PartCount{1, 132}, PartCount{64, 132}, PartCount{65, 66}, PartCount{128, 66},
        PartCount{129, 44}, PartCount{8448, 1}, PartCount{8449, 1}, PartCount{8576, 1}}) {
    SCOPED_TRACE(c.heads_times_q);
    EXPECT_EQ(num_sm_parts(132, c.heads_times_q, 1), c.parts);
  }
  EXPECT_EQ(num_sm_parts(1, 128, 4), 1);
}

// Scheduler metadata for local heads: each of these batches must see the gathered heads.
TEST(NumSmParts, GatheredHeadsHalveThePartsWhereLocalHeadsWouldNot) {
  struct Case {
    std::int64_t heads, ranks, q_len, gathered, local;
  };
  for (const Case& c :
       {Case{16, 8, 1, 66, 132}, Case{64, 2, 1, 66, 132}, Case{48, 2, 1, 66, 132},
        Case{32, 2, 2, 66, 132}, Case{4, 2, 1, 132, 132}, Case{16, 2, 1, 132, 132}}) {
    SCOPED_TRACE(std::to_string(c.heads) + " x " + std::to_string(c.ranks));
    EXPECT_EQ(num_sm_parts(132, c.heads * c.ranks, c.q_len), c.gathered);
    EXPECT_EQ(num_sm_parts(132, c.heads, c.q_len), c.local);
  }
}

TEST(NumSmParts, DividesSmsByKeyHeads) {
  EXPECT_EQ(num_sm_parts(132, 128, 1, 2), 66);  // 64 rows a key head: one tile
  EXPECT_EQ(num_sm_parts(132, 128, 1, 4), 33);
  EXPECT_EQ(num_sm_parts(148, 128, 3, 1), 24);  // 384 rows: 6 tiles
}

TEST(NumSmParts, RefusesWhatIsNotPositive) {
  EXPECT_THAT(message_of([] { num_sm_parts(0, 16, 1); }), HasSubstr("num_sms is 0"));
  EXPECT_THAT(message_of([] { num_sm_parts(132, 0, 1); }), HasSubstr("heads is 0"));
  EXPECT_THAT(message_of([] { num_sm_parts(132, 16, -2); }), HasSubstr("q_len is -2"));
  EXPECT_THAT(message_of([] { num_sm_parts(132, 16, 1, 3); }), HasSubstr("multiple of h_kv 3"));
}

TEST(BuildSchedule, CutsALongRequestAndSchedulesTheEmptyOne) {
  const std::vector<std::int32_t> lengths = {4096, 0, 1};
  EXPECT_EQ(part_payload(lengths, 4, kBlocks, {}), 26);
  const Schedule schedule = scheduled(lengths, 4, kBlocks);
  EXPECT_THAT(parts_of(schedule),
              ElementsAre(SchedulePart{0, 0, 0, 21, 0}, SchedulePart{0, 21, 0, 42, 1},
                          SchedulePart{0, 42, 0, 63, 2}, SchedulePart{0, 63, 2, 1, 3}));
  EXPECT_THAT(schedule.num_splits, ElementsAre(0, 4, 5, 6));
}

TEST(BuildSchedule, LeavesTheLastPartIdleWhenOthersSuffice) {
  const std::vector<std::int32_t> lengths = {65, 64, 63, 1};
  EXPECT_EQ(part_payload(lengths, 3, kBlocks, {}), 14);
  const Schedule blocks = scheduled(lengths, 3, kBlocks);
  EXPECT_THAT(parts_of(blocks),
              ElementsAre(SchedulePart{0, 0, 1, 1, 0}, SchedulePart{2, 0, 3, 1, 0},
                          SchedulePart{-1, 0, 3, 1, 0}));
  EXPECT_THAT(blocks.num_splits, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(is_idle(read_part(blocks.parts, 2), 4, kBlocks));
  EXPECT_FALSE(is_idle(read_part(blocks.parts, 1), 4, kBlocks));

  const Schedule tokens = scheduled(lengths, 3, kTokens);
  EXPECT_THAT(parts_of(tokens),
              ElementsAre(SchedulePart{0, 0, 1, 64, 0}, SchedulePart{2, 0, 3, 1, 0},
                          SchedulePart{4, 0, 3, 1, 0}));
}

TEST(BuildSchedule, EmptyRequestsCostABlockOrNothing) {
  const std::vector<std::int32_t> lengths = {0, 0, 0, 0};
  EXPECT_EQ(part_payload(lengths, 2, kBlocks, {}), 17);
  EXPECT_EQ(part_payload(lengths, 2, kTokens, {}), 15);
  const Schedule blocks = scheduled(lengths, 2, kBlocks);
  EXPECT_THAT(parts_of(blocks),
              ElementsAre(SchedulePart{0, 0, 1, 0, 0}, SchedulePart{2, 0, 3, 0, 0}));
  EXPECT_THAT(blocks.num_splits, ElementsAre(0, 1, 2, 3, 4));
  const Schedule tokens = scheduled(lengths, 2, kTokens);
  EXPECT_THAT(parts_of(tokens),
              ElementsAre(SchedulePart{0, 0, 2, 0, 0}, SchedulePart{3, 0, 3, 0, 0}));
}

TEST(BuildSchedule, ShortRequestsAreNotCut) {
  const std::vector<std::int32_t> lengths = {16, 24};
  EXPECT_EQ(part_payload(lengths, 2, kBlocks, {}), 11);
  const Schedule schedule = scheduled(lengths, 2, kBlocks);
  EXPECT_THAT(schedule.num_splits, ElementsAre(0, 1, 2));
  EXPECT_THAT(parts_of(schedule),
              ElementsAre(SchedulePart{0, 0, 0, 1, 0}, SchedulePart{1, 0, 1, 1, 0}));
}

TEST(BuildSchedule, BlockAndOverheadAreParameters) {
  ScheduleParams params;
  params.block = 16;
  params.overhead_blocks = 2;
  const std::vector<std::int32_t> lengths = {100, 7};  // 7 + 1 blocks
  EXPECT_EQ(part_payload(lengths, 2, kTokens, params), 8);
  EXPECT_THAT(parts_of(scheduled(lengths, 2, kTokens, params)),
              ElementsAre(SchedulePart{0, 0, 0, 96, 0}, SchedulePart{0, 96, 1, 7, 1}));
}

TEST(BuildSchedule, WritesEveryFieldOfEveryPart) {
  const Schedule schedule = scheduled({300, 0, 5}, 7, kTokens);
  for (std::int64_t p = 0; p < schedule.num_parts(); ++p) {
    for (std::int64_t f = 5; f < kPartFields; ++f) {
      EXPECT_EQ(schedule.parts[p * kPartFields + f], 0) << "part " << p << " field " << f;
    }
  }
  EXPECT_EQ(scheduled({}, 3, kBlocks).num_splits, std::vector<std::int32_t>{0});
  EXPECT_EQ(read_part(scheduled({}, 3, kBlocks).parts, 0), (SchedulePart{-1, 0, -1, 0, 0}));
  EXPECT_EQ(read_part(scheduled({}, 3, kTokens).parts, 2), (SchedulePart{0, 0, -1, 0, 0}));
}

// A captured graph keeps the buffers and replays with other lengths: same addresses, new numbers,
// nothing left over from before.
TEST(BuildSchedule, RefillsTheSameBuffers) {
  Device& host = host_device();
  Tensor parts(host, DType::kI32, {66, kPartFields}, "parts");
  Tensor num_splits(host, DType::kI32, {5}, "num_splits");
  Tensor lengths(host, DType::kI32, {4}, "lengths");
  const auto refill = [&](const std::vector<std::int32_t>& values) {
    std::copy(values.begin(), values.end(), lengths.as<std::int32_t>());
    build_schedule({parts, num_splits}, lengths, kBlocks);
    return std::vector<std::int32_t>(parts.as<std::int32_t>(),
                                     parts.as<std::int32_t>() + 66 * kPartFields);
  };
  refill({64, 64, 64, 64});
  for (const std::vector<std::int32_t>& next :
       {std::vector<std::int32_t>{4096, 1, 0, 0}, {65, 64, 64, 64}, {0, 0, 0, 0}}) {
    const Schedule fresh = scheduled(next, 66, kBlocks);
    EXPECT_EQ(refill(next), fresh.parts);
    EXPECT_EQ(
        std::vector<std::int32_t>(num_splits.as<std::int32_t>(), num_splits.as<std::int32_t>() + 5),
        fresh.num_splits);
  }
}

TEST(BuildSchedule, RefusesBadInputByName) {
  EXPECT_THAT(message_of([] { scheduled({4, -3}, 2, kBlocks); }), HasSubstr("lengths[1] is -3"));
  EXPECT_THAT(message_of([] { scheduled({4}, 0, kBlocks); }), HasSubstr("number of parts is 0"));
  EXPECT_THAT(message_of([] {
                scheduled(std::vector<std::int32_t>(kMaxScheduledRequests + 1, 1), 2, kTokens);
              }),
              HasSubstr("16385 requests"));
  ScheduleParams params;
  params.block = 0;
  EXPECT_THAT(message_of([&] { scheduled({4}, 2, kBlocks, params); }), HasSubstr("block is 0"));
  params = {};
  params.overhead_blocks = -1;
  EXPECT_THAT(message_of([&] { scheduled({4}, 2, kBlocks, params); }),
              HasSubstr("overhead_blocks is -1"));
  params = {};
  params.block = 1;
  EXPECT_THAT(message_of([&] {
                scheduled({2147483647, 1}, 2, kBlocks, params);
              }),
              HasSubstr("the batch costs 2147483658 blocks"));
  std::vector<std::int32_t> parts(16);
  std::vector<std::int32_t> splits(2);
  const std::vector<std::int32_t> lengths = {3, 4};
  EXPECT_THAT(message_of([&] { build_schedule(parts, splits, lengths, kBlocks); }),
              HasSubstr("num_splits has 2 entries, must have 3"));
  parts.resize(15);
  EXPECT_THAT(message_of([&] { build_schedule(parts, splits, lengths, kBlocks); }),
              HasSubstr("multiple of 8"));
}

TEST(BuildSchedule, NamesDialects) {
  EXPECT_EQ(schedule_dialect_from_name(name(kTokens)), kTokens);
  EXPECT_EQ(schedule_dialect_from_name(name(kBlocks)), kBlocks);
  EXPECT_THAT(message_of([] { schedule_dialect_from_name("pages"); }), HasSubstr("pages"));
}

TEST(MakeSchedule, TakesThePartsFromTheGatheredHeads) {
  const std::vector<std::int32_t> lengths = {16, 24};
  for (const ScheduleDialect dialect : {kTokens, kBlocks}) {
    EXPECT_EQ(make_schedule(lengths, {128, 1}, dialect).num_parts(), 66);
    EXPECT_EQ(make_schedule(lengths, {8, 1}, dialect).num_parts(), 132);
    EXPECT_EQ(make_schedule(lengths, {128, 2}, dialect).num_parts(), 33);
  }
}

}  // namespace
}  // namespace mladcp
