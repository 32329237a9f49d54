#include "reference/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

namespace mladcp {
namespace {

TEST(ParallelFor, VisitsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      for (const std::int64_t grain : {1, 3, 1000}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, " << count << " by " << grain);
        std::vector<int> visits(static_cast<std::size_t>(count), 0);
        parallel_for(
            threads, count, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; }, grain);
        EXPECT_EQ(visits, std::vector<int>(static_cast<std::size_t>(count), 1));
      }
    }
  }
}

TEST(ParallelFor, RunsOnTheCallingThreadWhenTheWorkFitsOneGrain) {
  const auto caller = std::this_thread::get_id();
  int elsewhere = 0;
  parallel_for(
      4, 10, [&](std::int64_t) { elsewhere += std::this_thread::get_id() == caller ? 0 : 1; }, 10);
  EXPECT_EQ(elsewhere, 0);
}

TEST(ParallelFor, CarriesAnExceptionToTheCaller) {
  for (const int threads : {1, 4}) {
    EXPECT_THROW(parallel_for(threads, 100,
                              [](std::int64_t i) {
                                if (i == 37) throw std::out_of_range("37");
                              }),
                 std::out_of_range);
  }
}

TEST(ParallelFor, ServesSeveralCallersAndNests) {
  std::atomic<int> calls{0};
  parallel_for(
      3, 8, [&](std::int64_t) { parallel_for(2, 16, [&](std::int64_t) { calls.fetch_add(1); }); });
  EXPECT_EQ(calls.load(), 128);
}

TEST(ParallelFor, SharesTheCoresAmongRanksAndLeavesEachOne) {
  EXPECT_GE(threads_per_rank(1), threads_per_rank(2));
  EXPECT_EQ(threads_per_rank(1 << 20), 1);
}

}  // namespace
}  // namespace mladcp
