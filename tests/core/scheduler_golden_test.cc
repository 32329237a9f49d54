// 560 schedules that FlashMLA's kernels wrote, in both dialects.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/scheduler.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

TEST(SchedulerGolden, EqualWhereSpecified) {
  std::ifstream file(test_data_path("golden/flashmla_metadata.jsonl"));
  ASSERT_TRUE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    SCOPED_TRACE("line " + std::to_string(cases + 1));
    const nlohmann::json golden = nlohmann::json::parse(line);
    const ScheduleDialect dialect =
        golden["variant"] == "blocks" ? ScheduleDialect::kBlocks : ScheduleDialect::kTokens;
    const auto lengths = golden["seq_lens"].get<std::vector<std::int32_t>>();
    const auto rows =
        golden["tile_scheduler_metadata"].get<std::vector<std::vector<std::int32_t>>>();
    ScheduleParams params;
    params.block = golden["block_n"];
    params.overhead_blocks = golden["fixed_overhead"];
    const Schedule schedule = make_schedule(lengths, {golden["heads_times_q"], 1}, dialect, params);

    ASSERT_EQ(schedule.num_parts(), static_cast<std::int64_t>(rows.size()));
    EXPECT_EQ(schedule.num_splits, golden["num_splits"].get<std::vector<std::int32_t>>());
    for (std::int64_t p = 0; p < schedule.num_parts(); ++p) {
      SchedulePart wanted{rows[p][0], rows[p][1], rows[p][2], rows[p][3], rows[p][4]};
      const SchedulePart got = read_part(schedule.parts, p);
      // What an idle part of the blocks dialect holds as its begin is read past an array.
      if (dialect == ScheduleDialect::kBlocks && wanted.begin_request == -1) {
        wanted.begin = got.begin;
      }
      ASSERT_EQ(got, wanted) << "part " << p << ": " << got.begin_request << ' ' << got.begin << ' '
                             << got.end_request << ' ' << got.end << ' ' << got.begin_split;
    }
  }
  EXPECT_EQ(cases, 560);
}

}  // namespace
}  // namespace mladcp
