// A decode step's plan: slots, visible lengths and rows of one rank, against numbers worked by
// hand.
#include "core/decode_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace mladcp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BlockTable table_of(std::int64_t columns, std::vector<std::int32_t> pages) {
  return {columns, std::move(pages)};
}

std::vector<std::int32_t> visible_of(const KvSharding& sharding, std::int64_t rank,
                                     const StepRequest& request) {
  const BlockTable table = table_of(4, {0, 1, 2, 3});
  return plan_decode(sharding, rank, 16, std::vector{request}, table).visible;
}

// Fault 6: a causal mask aligned to the local shard gives [3, 4, 5] on both ranks.
TEST(DecodePlan, RowsOfOneRequestSeeTheirOwnLengths) {
  EXPECT_THAT(visible_of({2, 1}, 0, {.length = 10, .q_len = 3}), ElementsAre(4, 5, 5));
  EXPECT_THAT(visible_of({2, 1}, 1, {.length = 10, .q_len = 3}), ElementsAre(4, 4, 5));
  EXPECT_THAT(visible_of({2, 4}, 0, {.length = 17, .q_len = 4}), ElementsAre(8, 8, 8, 9));
  EXPECT_THAT(visible_of({2, 4}, 1, {.length = 17, .q_len = 4}), ElementsAre(6, 7, 8, 8));
}

// Fault 5: positions 4 and 6 belong to rank 0; rank 1 stores nothing but keeps both rows.
TEST(DecodePlan, RankThatStoresNothingKeepsItsRows) {
  const BlockTable table = table_of(1, {5, 9});
  const std::vector<StepRequest> requests = {{.length = 5}, {.length = 7}};
  const DecodePlan other = plan_decode({2, 1}, 1, 16, requests, table);
  EXPECT_THAT(other.slots, ElementsAre(kNoSlot, kNoSlot));
  EXPECT_EQ(other.rows(), 2);
  const DecodePlan owner = plan_decode({2, 1}, 0, 16, requests, table);
  EXPECT_THAT(owner.slots, ElementsAre(5 * 16 + 2, 9 * 16 + 3));
}

// Fault 15: lengths below q_len are padding; C++ division of negatives must not make keys of them.
TEST(DecodePlan, PaddingRowsSeeNothingAndStoreNothing) {
  const BlockTable table = table_of(1, {0, 1, 2, 2147480000});
  const std::vector<StepRequest> requests = {{16, 4}, {7, 4}, {1, 4}, {0, 4}};
  const DecodePlan plan = plan_decode({1, 1}, 0, 16, requests, table);
  EXPECT_THAT(plan.visible, ElementsAre(13, 14, 15, 16, 4, 5, 6, 7, 0, 0, 0, 1, 0, 0, 0, 0));
  EXPECT_THAT(plan.slots, ElementsAre(12, 13, 14, 15, 19, 20, 21, 22, kNoSlot, kNoSlot, kNoSlot, 32,
                                      kNoSlot, kNoSlot, kNoSlot, kNoSlot));
  EXPECT_THAT(plan.lengths, ElementsAre(16, 7, 1, 0));
  EXPECT_THAT(plan.row_begin, ElementsAre(0, 4, 8, 12, 16));
}

TEST(DecodePlan, RaggedRowsStayWithTheirRequests) {
  const BlockTable table = table_of(1, {0, 1, 2});
  const std::vector<StepRequest> requests = {{9, 1}, {5, 0}, {8, 3}};
  const DecodePlan plan = plan_decode({1, 1}, 0, 16, requests, table);
  EXPECT_THAT(plan.request, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(plan.row_begin, ElementsAre(0, 1, 1, 4));
  EXPECT_EQ(plan.max_q_len, 3);
}

void expect_refused(const std::vector<StepRequest>& requests, const BlockTable& table,
                    const char* names) {
  try {
    plan_decode({2, 1}, 0, 16, requests, table);
    ADD_FAILURE() << "accepted; expected a refusal naming " << names;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(names));
  }
}

TEST(DecodePlan, RefusesWhatDoesNotFitByRequest) {
  expect_refused({{4, 1}, {-1, 1}}, table_of(1, {0, 1}), "request 1");
  expect_refused({{4, -1}}, table_of(1, {0}), "q_len -1");
  expect_refused({{4, 1}, {33, 1}}, table_of(1, {0, 1}), "request 1: length 33 needs 2");
  expect_refused({{4, 1}}, table_of(2, {0}), "block_table has 1 entries, expected 2");
  expect_refused({{std::int64_t{1} << 31, 1}}, table_of(1, {0}), "2147483648");
}

}  // namespace
}  // namespace mladcp
