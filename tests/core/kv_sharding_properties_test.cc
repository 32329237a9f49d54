// The sharding laws as properties over the sizes real deployments reach.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

#include "core/kv_sharding.h"

namespace mladcp {
namespace {

struct Deployment {
  KvSharding sharding;
  std::int64_t page = 0;
};

Deployment any_deployment() {
  const std::int64_t interleave = *rc::gen::element<std::int64_t>(1, 2, 3, 4, 16, 64, 100);
  const std::int64_t world_size = *rc::gen::inRange<std::int64_t>(1, 17);
  const std::int64_t runs_per_page = *rc::gen::inRange<std::int64_t>(1, 9);
  return {{world_size, interleave}, interleave * runs_per_page};
}

std::int64_t any_position() { return *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 40); }

RC_GTEST_PROP(KvShardingProperties, OwnerAndLocalInvertGlobal, ()) {
  const KvSharding sharding = any_deployment().sharding;
  const std::int64_t p = any_position();
  RC_ASSERT(sharding.owner(p) >= 0 && sharding.owner(p) < sharding.world_size);
  RC_ASSERT(sharding.global(sharding.local(p), sharding.owner(p)) == p);
}

RC_GTEST_PROP(KvShardingProperties, GlobalInvertsOwnerAndLocal, ()) {
  const KvSharding sharding = any_deployment().sharding;
  const std::int64_t l = any_position();
  const std::int64_t r = *rc::gen::inRange<std::int64_t>(0, sharding.world_size);
  const std::int64_t p = sharding.global(l, r);
  RC_ASSERT(sharding.owner(p) == r);
  RC_ASSERT(sharding.local(p) == l);
  RC_ASSERT(sharding.global(l + 1, r) > p);  // a rank keeps its tokens in order
}

RC_GTEST_PROP(KvShardingProperties, LocalLengthsSumToTheLength, ()) {
  const KvSharding sharding = any_deployment().sharding;
  const std::int64_t length = any_position();
  std::int64_t sum = 0;
  for (std::int64_t r = 0; r < sharding.world_size; ++r) {
    const std::int64_t local = sharding.local_length(length, r);
    RC_ASSERT(local >= 0 && local <= sharding.local_length(length, 0));
    sum += local;
  }
  RC_ASSERT(sum == length);
}

RC_GTEST_PROP(KvShardingProperties, OneMoreTokenGrowsItsOwnerAlone, ()) {
  const KvSharding sharding = any_deployment().sharding;
  const std::int64_t p = any_position();
  for (std::int64_t r = 0; r < sharding.world_size; ++r) {
    const std::int64_t growth = sharding.local_length(p + 1, r) - sharding.local_length(p, r);
    RC_ASSERT(growth == (sharding.owner(p) == r ? 1 : 0));
  }
}

RC_GTEST_PROP(KvShardingProperties, PaddedRowsNeverPassTheTable, ()) {
  const Deployment deployment = any_deployment();
  const std::int64_t length = any_position();
  const std::int64_t columns = table_columns(deployment.sharding, length, deployment.page);
  RC_ASSERT(deployment.sharding.padded_rows(length) <= columns * deployment.page);
  RC_ASSERT(deployment.sharding.padded_rows(length) >= deployment.sharding.local_length(length, 0));
}

RC_GTEST_PROP(KvShardingProperties, ExactlyOneRankStoresAToken, ()) {
  const Deployment deployment = any_deployment();
  const auto& [sharding, page] = deployment;
  const std::int64_t span = page * sharding.world_size;
  const std::int64_t p = *rc::gen::inRange<std::int64_t>(0, 4 * span);
  const auto table = *rc::gen::container<std::vector<std::int32_t>>(
      4, rc::gen::inRange<std::int32_t>(0, 2'147'480'000));
  int stored = 0;
  for (std::int64_t r = 0; r < sharding.world_size; ++r) {
    const std::int64_t slot = slot_of(sharding, p, r, page, table);
    if (slot == kNoSlot) continue;
    ++stored;
    RC_ASSERT(slot / page == table[p / span]);
    RC_ASSERT(slot % page == sharding.local(p) % page);
  }
  RC_ASSERT(stored == 1);
}

RC_GTEST_PROP(KvShardingProperties, ExpandedTablesLeaveSlotsAsTheyWere, ()) {
  const std::int64_t kernel_page = *rc::gen::inRange<std::int64_t>(1, 65);
  const std::int64_t page = kernel_page * *rc::gen::inRange<std::int64_t>(1, 9);
  const auto table = *rc::gen::container<std::vector<std::int32_t>>(
      3, rc::gen::inRange<std::int32_t>(0, 2'147'480'000));
  const std::int64_t local = *rc::gen::inRange<std::int64_t>(0, 3 * page);
  const std::int64_t kernel_entry =
      kernel_table_entry(table, local / kernel_page, page, kernel_page);
  RC_ASSERT(kernel_entry * kernel_page + local % kernel_page ==
            table[local / page] * page + local % page);
}

// A row sees what was there before its step and the step's tokens up to itself.
RC_GTEST_PROP(KvShardingProperties, VisibleLengthsOfARowSumToItsPositionPlusOne, ()) {
  const KvSharding sharding = any_deployment().sharding;
  const std::int64_t q_len = *rc::gen::inRange<std::int64_t>(1, 9);
  const std::int64_t length = q_len + any_position();
  const std::int64_t j = *rc::gen::inRange<std::int64_t>(0, q_len);
  std::int64_t sum = 0;
  for (std::int64_t r = 0; r < sharding.world_size; ++r) {
    sum += visible_length(sharding, length, q_len, j, r);
  }
  RC_ASSERT(sum == length - q_len + j + 1);
}

}  // namespace
}  // namespace mladcp
