#include "collectives/axis_in_front.h"

#include <gtest/gtest.h>

#include <cstring>

namespace mladcp {
namespace {

constexpr Stream kHostStream{};

// Moves blocks as a group of one kind of rank would: every peer sends what this rank sends.
void echo(const CollectiveCall& call, int world_size, const DenseCall& dense) {
  const auto bytes = static_cast<std::size_t>(dense.block_bytes);
  const auto* in = static_cast<const char*>(dense.in);
  auto* out = static_cast<char*>(dense.out);
  const int blocks = call.op == CollectiveOp::kReduceScatter ? 1 : world_size;
  for (int s = 0; s < blocks; ++s) {
    const bool same = call.op == CollectiveOp::kAllGather;
    std::memcpy(out + s * bytes, same ? in : in + bytes, bytes);
  }
}

class EchoCollective final : public Collective {
 public:
  explicit EchoCollective(int world_size) : world_size_(world_size), axis_(host_device()) {}
  int rank() const override { return 1; }
  int world_size() const override { return world_size_; }
  bool staged_in() const { return staged_in_; }
  bool staged_out() const { return staged_out_; }

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    with_axis_in_front(axis_, call, world_size_, out, in, stream, [&](const DenseCall& dense) {
      staged_in_ = dense.in != in.data;
      staged_out_ = dense.out != out.data;
      echo(call, world_size_, dense);
    });
  }

  int world_size_;
  AxisInFront axis_;
  bool staged_in_ = false;
  bool staged_out_ = false;
};

Tensor iota(const Shape& shape) {
  Tensor tensor(host_device(), DType::kI32, shape, "iota");
  for (int i = 0; i < static_cast<int>(element_count(shape)); ++i) tensor.as<std::int32_t>()[i] = i;
  return tensor;
}

TEST(AxisInFront, LeavesDenseTensorsWhereTheyAre) {
  EchoCollective echo_group(2);
  const Tensor in = iota({1, 3, 2});
  const Tensor out(host_device(), DType::kI32, {1, 6, 2}, "out");
  echo_group.all_gather(out, in, 1, kHostStream, "query");  // one token: dim 1 is in front already
  EXPECT_FALSE(echo_group.staged_in());
  EXPECT_FALSE(echo_group.staged_out());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(out.as<std::int32_t>()[i], i % 6);
}

TEST(AxisInFront, LeavesTensorsStoredAxisFirstWhereTheyAre) {
  EchoCollective echo_group(2);
  const Tensor in = iota({2, 3, 2});  // [heads, tokens, width]
  const Tensor out(host_device(), DType::kI32, {4, 3, 2}, "out");
  echo_group.all_gather(out.view().transposed(0, 1), in.view().transposed(0, 1), 1, kHostStream,
                        "query");
  EXPECT_FALSE(echo_group.staged_in());
  EXPECT_FALSE(echo_group.staged_out());
  for (int i = 0; i < 24; ++i) EXPECT_EQ(out.as<std::int32_t>()[i], i % 12);

  const Tensor blocks(host_device(), DType::kF32, {4, 3}, "in");  // [heads, tokens]
  for (int i = 0; i < 12; ++i) blocks.as<float>()[i] = static_cast<float>(i);
  const Tensor own(host_device(), DType::kF32, {2, 3}, "out");
  echo_group.reduce_scatter(own.view().transposed(0, 1), blocks.view().transposed(0, 1), 1,
                            kHostStream, "output");
  EXPECT_FALSE(echo_group.staged_in());
  EXPECT_FALSE(echo_group.staged_out());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(own.as<float>()[i], static_cast<float>(6 + i));
}

// On the wire a block lies axis first, whatever either side's strides are.
TEST(AxisInFront, StagesTheSideThatIsStoredOtherwise) {
  EchoCollective echo_group(2);
  const Tensor in = iota({2, 3});
  const Tensor out(host_device(), DType::kI32, {6, 2}, "out");
  echo_group.all_gather(out.view().transposed(0, 1), in, 1, kHostStream, "query");
  EXPECT_TRUE(echo_group.staged_in());
  EXPECT_FALSE(echo_group.staged_out());
  const int expected[] = {0, 3, 1, 4, 2, 5, 0, 3, 1, 4, 2, 5};
  for (int i = 0; i < 12; ++i) EXPECT_EQ(out.as<std::int32_t>()[i], expected[i]);
}

TEST(AxisInFront, StagesBothSidesOfAGather) {
  EchoCollective echo_group(2);
  const Tensor in = iota({2, 3});
  const Tensor out(host_device(), DType::kI32, {2, 6}, "out");
  echo_group.all_gather(out, in, 1, kHostStream, "query");
  EXPECT_TRUE(echo_group.staged_in());
  EXPECT_TRUE(echo_group.staged_out());
  const int expected[] = {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5};
  for (int i = 0; i < 12; ++i) EXPECT_EQ(out.as<std::int32_t>()[i], expected[i]);
}

TEST(AxisInFront, StagesBothSidesOfAScatter) {
  EchoCollective echo_group(2);
  const Tensor blocks(host_device(), DType::kF32, {3, 4}, "in");
  for (int i = 0; i < 12; ++i) blocks.as<float>()[i] = static_cast<float>(i);
  const Tensor out(host_device(), DType::kF32, {3, 2}, "out");
  echo_group.reduce_scatter(out, blocks, 1, kHostStream, "output");
  EXPECT_TRUE(echo_group.staged_in());
  EXPECT_TRUE(echo_group.staged_out());
  const float expected[] = {2, 3, 6, 7, 10, 11};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.as<float>()[i], expected[i]);
}

TEST(AxisInFront, StagesStridedTensors) {
  EchoCollective echo_group(2);
  const Tensor in = iota({3, 2});
  const Tensor out(host_device(), DType::kI32, {3, 4}, "out");
  echo_group.all_gather(out.view().transposed(0, 1), in.view().transposed(0, 1), 0, kHostStream,
                        "query");
  EXPECT_TRUE(echo_group.staged_in());
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) {
      EXPECT_EQ(out.as<std::int32_t>()[row * 4 + column], row * 2 + column % 2);
    }
  }
}

TEST(Scratch, GrowsAndThenStays) {
  Scratch scratch(host_device());
  void* small = scratch.reserve(100, kHostStream);
  EXPECT_EQ(scratch.reserve(50, kHostStream), small);
  void* large = scratch.reserve(10'000, kHostStream);
  EXPECT_EQ(scratch.reserve(100, kHostStream), large);
  EXPECT_EQ(scratch.reserve(10'000, kHostStream), large);
}

}  // namespace
}  // namespace mladcp
