// What AttentionOps promises about schedules, on the host's implementation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/scheduler.h"
#include "reference/cpu_attention_ops.h"
#include "reference/schedule_laws.h"

namespace mladcp {
namespace {

using ::testing::IsEmpty;

struct HostSchedule {
  HostSchedule(const std::vector<std::int32_t>& values, std::int64_t num_parts)
      : lengths(host_device(), DType::kI32, {static_cast<std::int64_t>(values.size())}, "lengths"),
        parts(host_device(), DType::kI32, {num_parts, kPartFields}, "parts"),
        num_splits(host_device(), DType::kI32, {static_cast<std::int64_t>(values.size()) + 1},
                   "num_splits") {
    std::copy(values.begin(), values.end(), lengths.as<std::int32_t>());
    std::fill_n(parts.as<std::int32_t>(), num_parts * kPartFields, -77);
    std::fill_n(num_splits.as<std::int32_t>(), values.size() + 1, -77);
  }

  std::vector<SchedulePart> part_list() const {
    const std::span<const std::int32_t> numbers(parts.as<std::int32_t>(),
                                                static_cast<std::size_t>(parts.view().elements()));
    std::vector<SchedulePart> list;
    for (std::int64_t p = 0; p < parts.shape()[0]; ++p) list.push_back(read_part(numbers, p));
    return list;
  }
  std::vector<std::int32_t> split_list() const {
    const auto* begin = num_splits.as<std::int32_t>();
    return {begin, begin + num_splits.view().elements()};
  }

  Tensor lengths;
  Tensor parts;
  Tensor num_splits;
};

TEST(CpuSchedule, HasThePartsOfTheHeadsItIsAskedFor) {
  CpuAttentionOps ops(1);
  for (const auto& [heads, q_len, parts] : {std::tuple(128, 1, 66),
                                            {16, 1, 132},
                                            {96, 1, 66},
                                            {64, 2, 66},
                                            {32, 2, 132},
                                            {128, 2, 33},
                                            {8449, 1, 1}}) {
    EXPECT_EQ(ops.num_parts({heads, q_len}), parts) << heads << " heads, q_len " << q_len;
  }
  EXPECT_EQ(CpuAttentionOps(1, 108).num_parts({128, 1}), 54);
}

TEST(CpuSchedule, FillsGivenBuffersByTheLaws) {
  CpuAttentionOps ops(2);
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{4096, 0, 1}, {16, 24}, {0, 0, 0, 0}, {70000, 3, 64, 65}, {}}) {
    for (const std::int64_t heads : {128, 16}) {
      const ScheduleShape shape{heads, 1};
      const HostSchedule host(lengths, ops.num_parts(shape));
      ops.build_schedule({host.parts, host.num_splits}, host.lengths, shape, Stream{});
      const std::vector<SchedulePart> parts = host.part_list();
      const std::vector<std::int32_t> splits = host.split_list();
      EXPECT_THAT(judge_schedule({ScheduleDialect::kBlocks, lengths, parts, splits, 64, 5}),
                  IsEmpty());
      EXPECT_THAT(
          judge_part_count(static_cast<std::int64_t>(parts.size()), 132, heads * shape.q_len, 1),
          IsEmpty());
    }
  }
}

TEST(CpuSchedule, RefusesBuffersOfAnotherSize) {
  CpuAttentionOps ops(1);
  const HostSchedule host({5, 6, 7}, 66);
  const TensorView short_splits = host.num_splits.view().narrow(0, 0, 3);
  EXPECT_THROW(ops.build_schedule({host.parts, short_splits}, host.lengths, {128, 1}, Stream{}),
               InvalidArgument);
  const TensorView narrow_parts = host.parts.view().narrow(1, 0, 5);
  EXPECT_THROW(
      ops.build_schedule({narrow_parts, host.num_splits}, host.lengths, {128, 1}, Stream{}),
      InvalidArgument);
}

}  // namespace
}  // namespace mladcp
