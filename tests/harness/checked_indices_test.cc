// Indices astray are refused by name before an operation follows them.
#include "harness/checked_indices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "reference/cpu_ops.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckedIndices, ASlotBeyondTheCache) {
  CpuOps cpu(1);
  const Tensor cache = host_tensor(DType::kBF16, {3, 4, 6}, "kv_cache");
  const Tensor latents = host_tensor(DType::kBF16, {3, 4}, "kv_c");
  const Tensor ropes = host_tensor(DType::kBF16, {3, 2}, "k_pe");
  const Tensor slots = index_tensor<std::int64_t>({11, -1, 4}, "slots");  // -1: another rank's
  const auto write = [&] {
    CheckedIndexOps(cpu.ops()).ops().cache.write({cache, 1.0F}, latents, ropes, slots, kHostStream);
  };
  EXPECT_EQ(refusal(write), "accepted");
  slots.as<std::int64_t>()[2] = 12;
  EXPECT_THAT(refusal(write), HasSubstr("slots[2] = 12: the cache has 12 rows"));
}

// Accepts every decode: only what is refused before it counts here.
class NoAttention final : public ForwardingAttentionOps {
 public:
  using ForwardingAttentionOps::ForwardingAttentionOps;
  void decode(const TensorView&, const TensorView&, const Query&, const KvCache&, const DecodeRows&,
              const ScheduleTensors&, const DecodeScales&, const TensorView&, Stream) override {}
};

TEST(CheckedIndices, APageOfAVisibleKey) {
  CpuOps cpu(1);
  NoAttention attention(cpu.attention);
  CheckedAttentionOps checked(attention);
  const Tensor cache = host_tensor(DType::kBF16, {3, 4, 6}, "kv_cache");
  const Tensor request = index_tensor<std::int32_t>({0, 1}, "request");
  Tensor visible = index_tensor<std::int32_t>({8, 3}, "visible");
  Tensor table = host_tensor(DType::kI32, {2, 2}, "block_table");
  const auto decode = [&] {
    checked.decode({}, {}, TensorView{}, {cache, 1.0F}, {request, visible, {}, {}, table}, {}, {},
                   {}, kHostStream);
  };
  const std::vector<std::int32_t> pages = {2, 0, 1, 2147480000};  // the last is not looked at
  std::copy(pages.begin(), pages.end(), table.as<std::int32_t>());
  EXPECT_EQ(refusal(decode), "accepted");
  visible.as<std::int32_t>()[1] = 5;
  EXPECT_THAT(refusal(decode), HasSubstr("block_table[1, 1] = 2147480000: the cache has 3 pages"));
  visible.as<std::int32_t>()[1] = 9;
  table.as<std::int32_t>()[3] = 1;
  EXPECT_THAT(refusal(decode), HasSubstr("request 1 has no column 2 for local row 8"));
}

}  // namespace
}  // namespace mladcp
