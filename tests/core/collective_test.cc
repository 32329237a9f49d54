// Calls as data; what the interface does with them is tested with the collectives.
#include "core/collective.h"

#include <gtest/gtest.h>

namespace mladcp {
namespace {

const CollectiveCall kQueryGather = {
    CollectiveOp::kAllGather, 1, DType::kE4M3, {3, 16, 576}, {3, 128, 576}, "query", 3};

TEST(CollectiveCall, DescribesItself) {
  EXPECT_EQ(describe(kQueryGather),
            "all_gather #3 'query' dim 1 e4m3 [3, 16, 576] -> [3, 128, 576]");
  EXPECT_EQ(name(CollectiveOp::kReduceScatter), "reduce_scatter");
  EXPECT_EQ(name(CollectiveOp::kAllToAll), "all_to_all");
}

TEST(CollectiveCall, DifferenceNamesEveryFieldThatDiffersAndNoOther) {
  EXPECT_EQ(difference(kQueryGather, kQueryGather), "");
  CollectiveCall other = kQueryGather;
  other.dim = 0;
  other.in_shape = {4, 16, 576};
  EXPECT_EQ(difference(kQueryGather, other),
            "dim 1 against 0, in_shape [3, 16, 576] against [4, 16, 576]");
  EXPECT_NE(kQueryGather, other);
  const CollectiveCall all_else = {
      CollectiveOp::kReduceScatter, 1, DType::kBF16, {3, 16, 576}, {3, 2, 576}, "output", 4};
  EXPECT_EQ(
      difference(kQueryGather, all_else),
      "op all_gather against reduce_scatter, sequence 3 against 4, stage query against output, "
      "dtype e4m3 against bf16, out_shape [3, 128, 576] against [3, 2, 576]");
}

// The (N - 1) / N laws with DeepSeek-V3's step of one token, TP8, DCP8.
TEST(CollectiveCall, WireBytesAreWhatOneRankMustReceive) {
  EXPECT_EQ(wire_bytes(kQueryGather, 8), 3 * 7 * 9216);
  const CollectiveCall reduce = {
      CollectiveOp::kReduceScatter, 1, DType::kBF16, {1, 128, 512}, {1, 16, 512}, "output", 0};
  EXPECT_EQ(wire_bytes(reduce, 8), 131072 - 16384);
  const CollectiveCall lse = {
      CollectiveOp::kAllGather, 0, DType::kF32, {1, 128}, {8, 128}, "lse", 0};
  EXPECT_EQ(wire_bytes(lse, 8), 4096 - 512);
  const CollectiveCall packed = {
      CollectiveOp::kAllToAll, 0, DType::kBF16, {8, 1, 16, 514}, {8, 1, 16, 514}, "output", 0};
  EXPECT_EQ(wire_bytes(packed, 8), 131584 / 8 * 7);
  EXPECT_EQ(wire_bytes(kQueryGather, 1), 0);
  EXPECT_EQ(wire_bytes(reduce, 1), 0);
  CollectiveCall empty = kQueryGather;
  empty.in_shape = {0, 16, 576};
  EXPECT_EQ(wire_bytes(empty, 8), 0);
}

}  // namespace
}  // namespace mladcp
