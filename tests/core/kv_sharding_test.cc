// The sharding laws against enumeration: position by position, without the closed forms.
#include "core/kv_sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/decode_plan.h"
#include "core/kv_cache.h"

namespace mladcp {
namespace {

using testing::ElementsAre;

std::string text(const KvSharding& sharding) {
  return "N " + std::to_string(sharding.world_size) + " I " + std::to_string(sharding.interleave);
}

std::vector<KvSharding> shardings() {
  std::vector<KvSharding> all;
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t i : {1, 2, 4, 5, 16, 64}) all.push_back({n, i});
  }
  return all;
}

std::vector<std::int64_t> local_lengths(const KvSharding& sharding, std::int64_t length) {
  std::vector<std::int64_t> result;
  for (std::int64_t r = 0; r < sharding.world_size; ++r) {
    result.push_back(sharding.local_length(length, r));
  }
  return result;
}

// Deals positions out one by one: a rank takes I, then the next rank does.
TEST(KvSharding, PlacesEveryPositionAsDealtOutOneByOne) {
  for (const KvSharding& sharding : shardings()) {
    SCOPED_TRACE(text(sharding));
    std::vector<std::int64_t> kept(static_cast<std::size_t>(sharding.world_size), 0);
    std::int64_t rank = 0;
    std::int64_t in_run = 0;
    for (std::int64_t p = 0; p < 3 * sharding.period() + 7; ++p) {
      ASSERT_EQ(local_lengths(sharding, p), kept) << "before position " << p;
      ASSERT_EQ(sharding.owner(p), rank) << "position " << p;
      ASSERT_EQ(sharding.local(p), kept[rank]) << "position " << p;
      ASSERT_EQ(sharding.global(kept[rank], rank), p);
      ++kept[rank];
      if (++in_run == sharding.interleave) {
        in_run = 0;
        rank = (rank + 1) % sharding.world_size;
      }
    }
  }
}

TEST(KvSharding, RankZeroIsAlwaysAMaximumAndPaddedRowsHoldIt) {
  for (const KvSharding& sharding : shardings()) {
    SCOPED_TRACE(text(sharding));
    for (std::int64_t length = 0; length <= 2 * sharding.period() + 1; ++length) {
      const std::vector<std::int64_t> lengths = local_lengths(sharding, length);
      ASSERT_EQ(*std::max_element(lengths.begin(), lengths.end()), lengths[0]) << length;
      ASSERT_GE(sharding.padded_rows(length), lengths[0]) << length;
      ASSERT_LT(sharding.padded_rows(length) - lengths[0], sharding.interleave) << length;
    }
  }
}

TEST(KvSharding, NegativeLengthsOfPaddingRowsCountAsZero) {
  constexpr KvSharding kSharding{4, 16};
  EXPECT_THAT(local_lengths(kSharding, -3), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(visible_length(kSharding, 0, 4, 0, 1), 0);
  EXPECT_EQ(visible_length(kSharding, 1, 4, 2, 0), 0);
  EXPECT_EQ(visible_length(kSharding, 1, 4, 3, 0), 1);
}

// Walks the cache: every position's slot lies in the page its column names, no slot serves twice,
// and a page fills without holes.
TEST(KvSharding, SlotsFillThePagesWithoutHoles) {
  for (const KvSharding& sharding : shardings()) {
    for (const std::int64_t page : {16, 64, 320}) {
      if (page % sharding.interleave != 0) continue;
      SCOPED_TRACE(text(sharding) + " page " + std::to_string(page));
      const std::vector<std::int32_t> table = {7, 2, 11};
      const std::int64_t span = page * sharding.world_size;
      for (std::int64_t r = 0; r < sharding.world_size; ++r) {
        std::int64_t kept = 0;
        for (std::int64_t p = 0; p < 3 * span; ++p) {
          const std::int64_t slot = slot_of(sharding, p, r, page, table);
          if (sharding.owner(p) != r) {
            ASSERT_EQ(slot, kNoSlot) << "position " << p << " rank " << r;
            continue;
          }
          ASSERT_EQ(slot, table[kept / page] * page + kept % page)
              << "position " << p << " rank " << r;
          ++kept;
        }
        ASSERT_EQ(kept, 3 * page);
      }
    }
  }
}

TEST(KvSharding, KernelPagesAreTheSameMemoryAsManagerPages) {
  const std::vector<std::int32_t> table = {5, 0, 9};
  for (const std::int64_t page : {4, 64}) {
    for (std::int64_t kernel_page = 1; kernel_page <= page; kernel_page *= 2) {
      for (std::int64_t local = 0; local < 3 * page; ++local) {
        const std::int64_t slot = table[local / page] * page + local % page;
        const std::int64_t kernel_slot =
            kernel_table_entry(table, local / kernel_page, page, kernel_page) * kernel_page +
            local % kernel_page;
        ASSERT_EQ(kernel_slot, slot) << "page " << page << " kernel page " << kernel_page;
      }
    }
  }
}

TEST(KvSharding, TableColumnsHoldTheLengthOnEveryRank) {
  constexpr KvSharding kSharding{2, 4};
  EXPECT_EQ(table_columns(kSharding, -1, 16), 0);
  EXPECT_EQ(table_columns(kSharding, 0, 16), 0);
  EXPECT_EQ(table_columns(kSharding, 1, 16), 1);
  EXPECT_EQ(table_columns(kSharding, 32, 16), 1);
  EXPECT_EQ(table_columns(kSharding, 33, 16), 2);
}

// Fault 6 of docs/faults.md: a mask aligned to the right end of the local shard is wrong.
TEST(KvSharding, VisibleLengthsOfSeveralNewTokens) {
  const auto visible = [](const KvSharding& sharding, std::int64_t length, std::int64_t q_len,
                          std::int64_t r) {
    std::vector<std::int64_t> rows;
    for (std::int64_t j = 0; j < q_len; ++j) {
      rows.push_back(visible_length(sharding, length, q_len, j, r));
    }
    return rows;
  };
  EXPECT_THAT(visible({2, 1}, 10, 3, 0), ElementsAre(4, 5, 5));
  EXPECT_THAT(visible({2, 1}, 10, 3, 1), ElementsAre(4, 4, 5));
  EXPECT_THAT(visible({2, 4}, 17, 4, 0), ElementsAre(8, 8, 8, 9));
  EXPECT_THAT(visible({2, 4}, 17, 4, 1), ElementsAre(6, 7, 8, 8));
}

// Fault 13 of docs/faults.md.
TEST(KvSharding, LocalLengthsWithInterleaveAboveOne) {
  EXPECT_THAT(local_lengths({3, 4}, 22), ElementsAre(8, 8, 6));
  EXPECT_THAT(local_lengths({2, 128}, 300), ElementsAre(172, 128));
  EXPECT_THAT(local_lengths({2, 64}, 65), ElementsAre(64, 1));
}

// Fault 13: manager page 4, kernel page 2.
TEST(KvSharding, InterleaveOfAWholePageLeavesNoHoles) {
  constexpr KvSharding kSharding{2, 4};
  const std::vector<std::int32_t> table = {0, 1};
  std::string owners;
  std::vector<std::int64_t> slots[2];
  for (std::int64_t p = 0; p < 16; ++p) {
    owners += std::to_string(kSharding.owner(p));
    for (std::int64_t r = 0; r < 2; ++r) {
      const std::int64_t slot = slot_of(kSharding, p, r, 4, table);
      if (slot != kNoSlot) slots[r].push_back(slot);
    }
  }
  EXPECT_EQ(owners, "0000111100001111");
  EXPECT_THAT(slots[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(slots[1], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const std::vector<std::int32_t> shuffled = {3, 1};
  std::vector<std::int64_t> kernel_table;
  for (std::int64_t c = 0; c < 4; ++c) {
    kernel_table.push_back(kernel_table_entry(shuffled, c, 4, 2));
  }
  EXPECT_THAT(kernel_table, ElementsAre(6, 7, 2, 3));
}

// Fault 23 of docs/faults.md: 112 is the unscaled answer, 64 the one scaled twice.
TEST(KvSharding, PrefixHitsAreWholePagesOfTheShardedCache) {
  EXPECT_EQ(prefix_hit_length({2, 1}, 120, 16), 96);
  EXPECT_EQ(prefix_hit_length({1, 1}, 120, 16), 112);
  EXPECT_EQ(prefix_hit_length({2, 1}, 31, 16), 0);
}

// Fault 24 of docs/faults.md: addresses beyond 2^31 elements and 2^32 bytes.
TEST(KvSharding, AddressesAre64Bit) {
  constexpr std::int64_t kRow = 576;
  EXPECT_EQ(cache_row_offset(3'728'271 / 64, 3'728'271 % 64, 64 * kRow, kRow), 2'147'484'096);
  EXPECT_EQ(cache_row_offset(262'143, 0, 16'384, 256), 4'294'950'912);
  const std::vector<std::int32_t> table(2, 2'147'480'000);
  EXPECT_EQ(slot_of({2, 1}, 129, 1, 64, table), 2'147'480'000LL * 64);
  EXPECT_EQ(slot_of({2, 1}, 131, 1, 64, table), 2'147'480'000LL * 64 + 1);
  EXPECT_EQ(kernel_table_entry(table, 3, 64, 32), 2'147'480'000LL * 2 + 1);
  constexpr KvSharding kWide{8, 64};
  EXPECT_EQ(kWide.global(kWide.local(5'000'000'123), kWide.owner(5'000'000'123)), 5'000'000'123);
}

// Fault 43 of docs/faults.md: an entry for every token, stored here or not.
TEST(KvSharding, SlotMappingHasOneEntryPerToken) {
  const StepRequest request{10, 10};
  const BlockTable table{1, {4}};
  for (std::int64_t r = 0; r < 2; ++r) {
    const DecodePlan plan = plan_decode({2, 1}, r, 16, {&request, 1}, table);
    ASSERT_EQ(plan.slots.size(), 10U);
    EXPECT_EQ(std::count_if(plan.slots.begin(), plan.slots.end(),
                            [](std::int64_t slot) { return slot >= 0; }),
              5);
  }
}

}  // namespace
}  // namespace mladcp
