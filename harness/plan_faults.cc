// Faults in a rank's plan: visible lengths, slots, tables.
#include <algorithm>

#include "harness/fault.h"
#include "harness/fault_variations.h"

namespace mladcp {
namespace {

Fault plan_fault(std::string name, std::string imitates, int rank, PlanFault::Edit edit,
                 const Scenario& scenario = fault_scenario()) {
  return {std::move(name),
          std::move(imitates),
          "plan",
          rank,
          scenario,
          {"numeric"},
          std::make_shared<PlanFault>(rank, std::move(edit))};
}

Scenario several_rows() {
  Scenario scenario = fault_scenario();
  scenario.q_len = 3;
  return scenario;
}

// Recomputes the visible lengths of a plan; lengths follow.
void set_visible(
    DecodePlan& plan,
    const std::function<std::int64_t(std::size_t row, std::int64_t position)>& visible) {
  std::fill(plan.lengths.begin(), plan.lengths.end(), 0);
  for (std::size_t i = 0; i < plan.visible.size(); ++i) {
    plan.visible[i] =
        static_cast<std::int32_t>(std::max<std::int64_t>(0, visible(i, plan.position[i])));
    auto& length = plan.lengths[static_cast<std::size_t>(plan.request[i])];
    length = std::max(length, plan.visible[i]);
  }
}

std::vector<Fault> visible_faults() {
  const KvSharding sharding = fault_scenario().parallel.sharding();
  const std::int64_t n = sharding.world_size;
  return {
      plan_fault(
          "visible-local-causal", "causal mask aligned to the local shard (vLLM 46076, 47181)", 1,
          [sharding](int rank, DecodePlan& plan) {
            set_visible(plan, [&](std::size_t i, std::int64_t position) {
              const auto end = plan.row_begin[static_cast<std::size_t>(plan.request[i]) + 1];
              const std::int64_t later = end - 1 - static_cast<std::int64_t>(i);
              return sharding.local_length(position + later + 1, rank) - later;
            });
          },
          several_rows()),
      plan_fault("visible-short-by-one", "the newest local key is not attended", 2,
                 [](int, DecodePlan& plan) {
                   set_visible(plan, [&](std::size_t i, std::int64_t) {
                     return std::int64_t{plan.visible[i]} - 1;
                   });
                 }),
      plan_fault("visible-even-share", "every rank assumes ceil(S / N) keys (vLLM 51031)",
                 Fault::kEveryRank,
                 [n](int, DecodePlan& plan) {
                   set_visible(plan, [&](std::size_t, std::int64_t position) {
                     return (position + n) / n;
                   });
                 }),
      plan_fault("visible-whole-periods", "the tail beyond whole interleave periods is dropped",
                 Fault::kEveryRank,
                 [sharding](int, DecodePlan& plan) {
                   set_visible(plan, [&](std::size_t, std::int64_t position) {
                     return (position + 1) / sharding.period() * sharding.interleave;
                   });
                 }),
      plan_fault("visible-interleave-one", "lengths computed for I = 1 (vLLM 51031)",
                 Fault::kEveryRank,
                 [n](int rank, DecodePlan& plan) {
                   const KvSharding single{n, 1};
                   set_visible(plan, [&](std::size_t, std::int64_t position) {
                     return single.local_length(position + 1, rank);
                   });
                 }),
      plan_fault("visible-of-next-rank", "a rank uses its neighbour's length", 0,
                 [sharding](int rank, DecodePlan& plan) {
                   set_visible(plan, [&](std::size_t, std::int64_t position) {
                     return sharding.local_length(position + 1, rank + 1);
                   });
                 }),
      plan_fault("visible-without-new-token", "lengths taken before this step's token is counted",
                 Fault::kEveryRank,
                 [sharding](int rank, DecodePlan& plan) {
                   set_visible(plan, [&](std::size_t, std::int64_t position) {
                     return sharding.local_length(position, rank);
                   });
                 }),
      plan_fault(
          "stale-lengths", "schedule lengths of the captured batch (vLLM 35175)", 1,
          [](int, DecodePlan& plan) { std::reverse(plan.lengths.begin(), plan.lengths.end()); }),
  };
}

std::vector<Fault> slot_faults() {
  return {
      plan_fault("slot-everywhere", "every rank stores every token", 1,
                 [](int, DecodePlan& plan) {
                   for (auto& slot : plan.slots) slot = std::max<std::int64_t>(slot, 3);
                 }),
      plan_fault(
          "slot-nowhere", "a rank stores none of its tokens", 0,
          [](int, DecodePlan& plan) { std::fill(plan.slots.begin(), plan.slots.end(), kNoSlot); }),
      plan_fault("slot-next-row", "slots one row too far", Fault::kEveryRank,
                 [](int, DecodePlan& plan) {
                   for (auto& slot : plan.slots)
                     slot = slot < 0 ? slot : slot + (slot > 0 ? -1 : 1);
                 }),
      plan_fault("slot-ignores-ranks", "block = position / page, not / (page * N)",
                 Fault::kEveryRank,
                 [](int, DecodePlan& plan) {
                   const std::int64_t page = fault_scenario().parallel.page_size;
                   for (std::size_t i = 0; i < plan.slots.size(); ++i) {
                     const std::int64_t position = std::max<std::int64_t>(0, plan.position[i]);
                     const auto table = plan.block_table.row(plan.request[i]);
                     const auto column =
                         std::min(static_cast<std::size_t>(position / page), table.size() - 2);
                     if (plan.slots[i] >= 0 && table[column] < 1'000'000) {
                       plan.slots[i] = table[column] * page + position % page;
                     }
                   }
                 }),
      plan_fault("slot-of-another-request", "slots of two requests exchanged", Fault::kEveryRank,
                 [](int, DecodePlan& plan) { std::reverse(plan.slots.begin(), plan.slots.end()); }),
      plan_fault("table-pages-exchanged", "pages of two requests exchanged", 2,
                 [](int, DecodePlan& plan) {
                   auto& pages = plan.block_table.pages;
                   const std::int64_t columns = plan.block_table.columns;
                   const std::int64_t b = plan.requests();
                   std::swap(pages[static_cast<std::size_t>((b - 2) * columns)],
                             pages[static_cast<std::size_t>((b - 1) * columns)]);
                 }),
      plan_fault("table-page-repeated", "one page read twice, another never", 1,
                 [](int, DecodePlan& plan) {
                   auto& pages = plan.block_table.pages;
                   const auto last =
                       static_cast<std::size_t>((plan.requests() - 1) * plan.block_table.columns);
                   pages[last + 1] = pages[last];
                 }),
      plan_fault("padding-row-sees-keys", "padding rows of a captured batch attend (vLLM 35969)", 0,
                 [](int, DecodePlan& plan) {
                   for (auto& visible : plan.visible) visible = std::max(visible, 1);
                   for (auto& length : plan.lengths) length = std::max(length, 1);
                   for (auto& page : plan.block_table.pages) page = page > 1'000'000 ? 0 : page;
                 }),
  };
}

}  // namespace

std::vector<Fault> plan_faults() {
  std::vector<Fault> faults = visible_faults();
  for (Fault& fault : slot_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace mladcp
