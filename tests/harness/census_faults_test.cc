// The census proved on real decode steps: every way of losing, doubling or mixing up keys is
// injected and must be flagged, by rank, request and position.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "harness/fault_variations.h"
#include "harness/naive_attention.h"
#include "harness/run_scenario.h"
#include "harness/scenario_options.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

constexpr int kFaultyRank = 1;

// Request 1 is long enough for every fault: several windows and pages on each rank.
Scenario census_run() {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = {.heads = 12, .tp = 2, .dcp = 2, .interleave = 4, .page_size = 64};
  scenario.seq_lens = {131, 1301, 700};
  scenario.probes = {"census"};
  scenario.seed = 3;
  return scenario;
}

// The first failed check of the census; a check that passed when there is none.
Check first_failure(const Scenario& scenario, const Variation* variation) {
  const Report report = run_scenario(scenario, variation, [](double, std::string_view) {});
  EXPECT_FALSE(report.checks.empty());
  for (const Check& check : report.checks) {
    if (check.status == CheckStatus::kFail) return check;
  }
  return {};
}

void expect_flagged(const Variation& variation, const std::string& what,
                    const Scenario& scenario = census_run()) {
  SCOPED_TRACE(what);
  const Check check = first_failure(scenario, &variation);
  EXPECT_EQ(check.status, CheckStatus::kFail);
  EXPECT_EQ(check.stage, "attention");
  EXPECT_EQ(check.rank, scenario.parallel.dcp == 1 ? 0 : kFaultyRank);
  EXPECT_THAT(check.message, HasSubstr(what));
}

PlanFault shortened(int rank, std::int32_t keys) {
  return {rank, [keys](int, DecodePlan& plan) {
            for (auto& visible : plan.visible) visible = std::max(visible - keys, 0);
            for (auto& length : plan.lengths) length = std::max(length - keys, 0);
          }};
}

// Breaks what attention is given or gives back.
OpFault broken_attention(std::function<void(AttentionOps& next, const OpFunctions::Decode&)> f) {
  OpFunctions functions;
  functions.decode = std::move(f);
  return {kFaultyRank, functions};
}

// Edits the cache rows of requests before attention reads them: row(request, k) is local key k.
using RowOf = std::function<unsigned char*(std::int64_t request, std::int64_t key)>;
OpFault broken_cache(std::function<void(const RowOf& row, std::int64_t latent)> edit) {
  return broken_attention(
      [edit = std::move(edit)](AttentionOps& next, const OpFunctions::Decode& call) {
        const Tensor table = copied_to_host(call.rows.block_table, call.stream);
        edit_tensor(call.cache.data, call.stream, [&](const TensorView& host) {
          const std::int64_t page_size = call.cache.page_size();
          const std::int64_t row_bytes = host.size(2);  // e4m3
          edit(
              [&](std::int64_t request, std::int64_t key) {
                const std::int64_t page =
                    table.as<const std::int32_t>()[request * table.shape()[1] + key / page_size];
                return host.as<unsigned char>() + (page * page_size + key % page_size) * row_bytes;
              },
              call.out.size(2));
        });
        call.run(next);
      });
}

TEST(CensusFaults, CleanRunHasNone) {
  EXPECT_EQ(first_failure(census_run(), nullptr).status, CheckStatus::kPass);
}

TEST(CensusFaults, ThreeHundredRandomCleanRunsHaveNone) {
  std::mt19937_64 random(20);
  const auto pick = [&](const auto& values) { return values[random() % std::size(values)]; };
  for (int i = 0; i < 300; ++i) {
    Scenario scenario;
    scenario.model = "tiny";
    scenario.probes = {"census"};
    scenario.seed = random();
    ParallelConfig& config = scenario.parallel;
    config.dcp = pick(std::array{1, 2, 3, 4});
    config.tp = config.dcp * pick(std::array{1, 1, 2});
    config.heads = config.tp * pick(std::array{1, 2, 3});
    config.interleave = pick(std::array{1, 2, 4, 16});
    config.page_size = pick(std::array{16, 64});
    config.kv_dtype = pick(std::array{DType::kE4M3, DType::kBF16});
    config.query = config.kv_dtype == DType::kBF16
                       ? QueryForm::kPair
                       : pick(std::array{QueryForm::kPair, QueryForm::kQuantized});
    config.combine = pick(
        std::array{Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked});
    config.project_before_merge = pick(std::array{false, true});
    config.replicate_query = pick(std::array{false, true});
    scenario.q_len = pick(std::array{1, 2, 5});
    for (std::uint64_t request = random() % 4; request > 0; --request) {
      scenario.seq_lens.push_back(static_cast<std::int64_t>(random() % 260));
    }
    const Check check = first_failure(scenario, nullptr);
    ASSERT_EQ(check.status, CheckStatus::kPass) << command_line(scenario) << ": " << check.message;
  }
}

TEST(CensusFaults, ShortLengths) {
  expect_flagged(shortened(kFaultyRank, 1), "request 0, position");
  expect_flagged(shortened(kFaultyRank, 64), "missed");
  expect_flagged(shortened(kFaultyRank, 512), "missed");
}

TEST(CensusFaults, LengthShortBy32768) {
  Scenario scenario = census_run();
  scenario.parallel.tp = 1;
  scenario.parallel.dcp = 1;
  scenario.parallel.heads = 64;
  scenario.seq_lens = {32768 + 70};
  expect_flagged(shortened(0, 32768), "position 70 missed", scenario);
}

TEST(CensusFaults, AllKeysTwice) {
  expect_flagged(broken_attention([](AttentionOps& next, const OpFunctions::Decode& call) {
                   call.run(next);
                   map_values(call.lse, call.stream,
                              [](float lse, std::int64_t) { return lse + std::log(2.0F); });
                 }),
                 "attended 2.0");
}

TEST(CensusFaults, OneWindowTwiceAndAnotherMissing) {
  const KvSharding sharding = census_run().parallel.sharding();
  const std::int64_t width = census_run().model_config().dims.latent;
  NaiveAttention attention;
  attention.weight = [=](std::int64_t row, std::int64_t, std::int64_t key, std::int64_t) {
    const std::int64_t window = sharding.global(key, kFaultyRank) / width;
    if (row != 1) return 1.0;  // of request 1
    return window == 5 ? 2.0 : window == 3 ? 0.0 : 1.0;
  };
  const OpFault fault = broken_attention(
      [=](AttentionOps&, const OpFunctions::Decode& call) { attention.run(call); });
  // The first position that rank 1 keeps of window 3, which is missing.
  expect_flagged(fault, fmt::format("request 1, position {} missed", 3 * width + 4));
}

TEST(CensusFaults, OnePageTwiceAndAnotherNever) {
  const PlanFault fault(kFaultyRank, [](int, DecodePlan& plan) {
    auto* pages = plan.block_table.pages.data() + plan.block_table.columns;  // of request 1
    pages[3] = pages[1];
  });
  expect_flagged(fault, "request 1, position");
}

TEST(CensusFaults, PagesOfTwoRequestsExchanged) {
  const PlanFault fault(kFaultyRank, [](int, DecodePlan& plan) {
    auto* pages = plan.block_table.pages.data();
    std::swap(pages[plan.block_table.columns], pages[2 * plan.block_table.columns]);
  });
  expect_flagged(fault, "request 1, position");
}

// Exchanges heads of a query or output [T, heads, X] by `source_of`.
void permute_heads(const TensorView& tensor, Stream stream,
                   const std::function<std::int64_t(std::int64_t)>& source_of) {
  edit_tensor(tensor, stream, [&](const TensorView& host) {
    const Tensor before = copied_to_host(host, {});
    for (std::int64_t head = 0; head < host.size(1); ++head) {
      host_device().copy_strided(host.narrow(1, head, 1),
                                 before.view().narrow(1, source_of(head), 1), {});
    }
  });
}

TEST(CensusFaults, HeadBlocksRotated) {
  const std::int64_t heads = census_run().parallel.heads;
  const std::int64_t block = census_run().parallel.local_heads();
  expect_flagged(broken_attention([=](AttentionOps& next, const OpFunctions::Decode& call) {
                   permute_heads(std::get<TensorView>(call.query), call.stream,
                                 [=](std::int64_t head) { return (head + block) % heads; });
                   call.run(next);
                 }),
                 "request 1, position");
}

TEST(CensusFaults, TwoHeadsSwapped) {
  expect_flagged(broken_attention([](AttentionOps& next, const OpFunctions::Decode& call) {
                   call.run(next);
                   permute_heads(call.out, call.stream, [](std::int64_t head) {
                     return head == 7 ? 8 : head == 8 ? 7 : head;
                   });
                 }),
                 "tensor partial output[0, 7, ");
}

TEST(CensusFaults, OneKeyFromAnotherRequest) {
  // Local key 9 of rank 1 is position 21: period 8, interleave 4.
  expect_flagged(broken_cache([](const RowOf& row, std::int64_t latent) {
                   std::memcpy(row(1, 9), row(2, 10), static_cast<std::size_t>(latent));
                 }),
                 "request 1, position 21 missed");
}

TEST(CensusFaults, LatentRowsShiftedAgainstRopeRows) {
  expect_flagged(broken_cache([](const RowOf& row, std::int64_t latent) {
                   for (std::int64_t key = 500; key > 0; --key) {
                     std::memcpy(row(1, key), row(1, key - 1), static_cast<std::size_t>(latent));
                   }
                 }),
                 "request 1, position");
}

}  // namespace
}  // namespace mladcp
