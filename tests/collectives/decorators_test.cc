// The collectives that are not a group: fake, recording, forwarding, mock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/call_log.h"
#include "collectives/fake_collective.h"
#include "collectives/forwarding_collective.h"
#include "collectives/in_process_group.h"
#include "collectives/recording_collective.h"
#include "core/error.h"
#include "tests/support/mock_collective.h"

namespace mladcp {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::Field;
using testing::Return;

constexpr Stream kHostStream{};

Tensor iota(const Shape& shape) {
  Tensor tensor(host_device(), DType::kF32, shape, "iota");
  for (std::int64_t i = 0; i < element_count(shape); ++i)
    tensor.as<float>()[i] = static_cast<float>(i);
  return tensor;
}

std::vector<float> values(const Tensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.view().elements()};
}

TEST(FakeCollective, ActsAsIfEveryPeerHeldThisRanksInput) {
  CallLog log;
  FakeCollective fake(1, 2, log);
  const Tensor gathered(host_device(), DType::kF32, {2, 4}, "gathered");
  fake.all_gather(gathered, iota({2, 2}), 1, kHostStream, "query");
  EXPECT_THAT(values(gathered), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));

  const Tensor reduced(host_device(), DType::kF32, {2, 1}, "reduced");
  fake.reduce_scatter(reduced, iota({2, 2}), 1, kHostStream, "output");
  EXPECT_THAT(values(reduced), ElementsAre(2, 6));

  const Tensor swapped(host_device(), DType::kF32, {2, 2}, "swapped");
  fake.all_to_all(swapped, iota({2, 2}), kHostStream, "lse");
  EXPECT_THAT(values(swapped), ElementsAre(2, 3, 2, 3));

  const std::vector<CallRecord> records = log.of_rank(1);
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(describe(records[0].call), "all_gather #0 'query' dim 1 fp32 [2, 2] -> [2, 4]");
  EXPECT_EQ(describe(records[1].call), "reduce_scatter #1 'output' dim 1 fp32 [2, 2] -> [2, 1]");
  EXPECT_EQ(describe(records[2].call), "all_to_all #2 'lse' dim 0 fp32 [2, 2] -> [2, 2]");
}

TEST(FakeCollective, RefusesARankOutsideOfTheWorld) {
  CallLog log;
  EXPECT_THROW(FakeCollective(2, 2, log), InvalidArgument);
  EXPECT_THROW(FakeCollective(-1, 2, log), InvalidArgument);
  EXPECT_THROW(FakeCollective(0, 0, log), InvalidArgument);
}

// The bytes of DeepSeek-V3's query gather under TP8, DCP8, one token.
TEST(RecordingCollective, RecordsBytesOfEveryCallInOrder) {
  CallLog fake_log;
  FakeCollective fake(3, 8, fake_log);
  CallLog log;
  RecordingCollective recording(fake, log);
  const Tensor query(host_device(), DType::kE4M3, {1, 16, 576}, "query");
  const Tensor gathered(host_device(), DType::kE4M3, {1, 128, 576}, "gathered");
  host_device().fill_bytes(query.view().data, 0, std::size_t{16} * 576, kHostStream);
  recording.all_gather(gathered, query, 1, kHostStream, "query");
  const std::vector<CallRecord> records = log.records();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].rank, 3);
  EXPECT_EQ(records[0].in_bytes, 9216);
  EXPECT_EQ(records[0].out_bytes, 73728);
  EXPECT_EQ(records[0].wire_bytes, 7 * 9216);
  EXPECT_TRUE(records[0].completed);
  EXPECT_LE(records[0].start_us, records[0].end_us);
  EXPECT_EQ(fake_log.records().at(0).call, records[0].call);
  log.clear();
  EXPECT_TRUE(log.records().empty());
}

TEST(RecordingCollective, SharesOneLogBetweenTheRanksOfAGroup) {
  CallLog log;
  InProcessGroup group(3);
  group.run([&log](Collective& collective) {
    RecordingCollective recording(collective, log);
    for (int i = 0; i < 5; ++i) {
      const Tensor in(host_device(), DType::kBF16, {1}, "in");
      const Tensor out(host_device(), DType::kBF16, {3}, "out");
      host_device().fill_bytes(in.view().data, 0, 2, kHostStream);
      recording.all_gather(out, in, 0, kHostStream, "lse");
    }
  });
  const std::vector<CallRecord> records = log.records();
  ASSERT_EQ(records.size(), 15U);
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(records[i].rank, i / 5);
    EXPECT_EQ(records[i].call.sequence, i % 5);
  }
}

TEST(RecordingCollective, RecordsACallThatThrowsAsNotCompleted) {
  MockCollective mock;
  EXPECT_CALL(mock, rank).WillRepeatedly(Return(0));
  EXPECT_CALL(mock, world_size).WillRepeatedly(Return(1));
  EXPECT_CALL(mock, run).WillOnce([](auto&&...) { throw Timeout("rank 1 did not come"); });
  CallLog log;
  RecordingCollective recording(mock, log);
  const Tensor tensor = iota({2});
  EXPECT_THROW(recording.all_gather(tensor, iota({2}), 0, kHostStream, "query"), Timeout);
  ASSERT_EQ(log.records().size(), 1U);
  EXPECT_FALSE(log.records()[0].completed);
}

// The checks of the interface come before the backend, once, with the axis made positive.
TEST(Collective, HandsTheBackendAFilledDescription) {
  MockCollective mock;
  EXPECT_CALL(mock, rank).WillRepeatedly(Return(0));
  EXPECT_CALL(mock, world_size).WillRepeatedly(Return(2));
  const Tensor in = iota({3, 4, 2});
  const Tensor out(host_device(), DType::kF32, {3, 2, 2}, "out");
  const CollectiveCall wanted = {
      CollectiveOp::kReduceScatter, 1, DType::kF32, {3, 4, 2}, {3, 2, 2}, "output", 0};
  EXPECT_CALL(mock, run(wanted, Field(&TensorView::data, out.view().data),
                        Field(&TensorView::data, in.view().data), _));
  mock.reduce_scatter(out, in, -2, kHostStream, "output");
  EXPECT_THROW(mock.reduce_scatter(out, in, 0, kHostStream, "output"), InvalidArgument);
}

// A fault as a decorator: rank 0 drops its first call.
class DroppingCollective final : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    if (call.sequence != 0 || rank() != 0) forward(call, out, in, stream);
  }
};

TEST(ForwardingCollective, DroppedCallShowsAsAMismatchOfSequenceNumbers) {
  InProcessGroup group(2);
  const auto run = [&group] {
    group.run([](Collective& collective) {
      DroppingCollective dropping(collective);
      for (int i = 0; i < 2; ++i) {
        const Tensor out(host_device(), DType::kF32, {4}, "out");
        dropping.all_gather(out, iota({2}), 0, kHostStream, "query");
      }
    });
  };
  try {
    run();
    FAIL() << "nobody noticed";
  } catch (const RankMismatch& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("sequence 0 against 1"));
  }
}

}  // namespace
}  // namespace mladcp
