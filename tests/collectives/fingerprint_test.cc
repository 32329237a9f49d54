#include "collectives/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "collectives/in_process_group.h"
#include "collectives/validating_collective.h"
#include "core/error.h"

namespace mladcp {
namespace {

const CollectiveCall kQueryGather = {
    CollectiveOp::kAllGather, 1, DType::kE4M3, {3, 16, 576}, {3, 128, 576}, "query", 3};

TEST(Fingerprint, CarriesACallThroughBytes) {
  const CollectiveCall all_to_all = {CollectiveOp::kAllToAll, 0,  DType::kBF16, {8, 1, 2, 3, 4},
                                     {8, 1, 2, 3, 4},         "", 1LL << 40};
  for (const CollectiveCall& call : {kQueryGather, all_to_all}) {
    unsigned char bytes[sizeof(Fingerprint)];
    const Fingerprint sent = Fingerprint::of(call);
    std::memcpy(bytes, &sent, sizeof bytes);
    Fingerprint received;
    std::memcpy(&received, bytes, sizeof bytes);
    EXPECT_EQ(received.call(), call) << describe(received.call());
  }
}

TEST(Fingerprint, CutsLongStageNamesAndSurvivesGarbage) {
  CollectiveCall call = kQueryGather;
  const std::string stage(100, 's');
  call.stage = stage;
  EXPECT_EQ(Fingerprint::of(call).call().stage, stage.substr(0, Fingerprint::kStageBytes));
  Fingerprint garbage;
  const std::vector<unsigned char> ones(sizeof garbage, 0xFF);
  std::memcpy(&garbage, ones.data(), sizeof garbage);
  EXPECT_EQ(garbage.call().stage.size(), static_cast<std::size_t>(Fingerprint::kStageBytes));
  EXPECT_EQ(garbage.call().in_shape.rank(), 0);
}

TEST(Fingerprint, MismatchMessageListsRanksCallsAndFields) {
  std::vector<Fingerprint> fingerprints(3, Fingerprint::of(kQueryGather));
  EXPECT_EQ(mismatch_message(fingerprints), "");
  CollectiveCall other = kQueryGather;
  other.dim = 0;
  fingerprints[2] = Fingerprint::of(other);
  EXPECT_EQ(mismatch_message(fingerprints),
            "ranks disagree: ranks 0, 1 call all_gather #3 'query' dim 1 e4m3 [3, 16, 576] -> "
            "[3, 128, 576]; rank 2 calls all_gather #3 'query' dim 0 e4m3 [3, 16, 576] -> "
            "[3, 128, 576]; rank 2 against rank 0: dim 0 against 1");
}

// Another rank's call reaches a group that would hang or mix data up: here, one that would fail in
// its own words.
TEST(ValidatingCollective, NamesTheDifferenceBeforeTheCallIsMade) {
  InProcessGroup group(2);
  const auto run = [&group] {
    group.run([](Collective& collective) {
      ValidatingCollective validating(collective, host_device());
      const std::int64_t tokens = 3 + collective.rank();
      const Tensor in(host_device(), DType::kBytes, {tokens}, "in");
      const Tensor out(host_device(), DType::kBytes, {2 * tokens}, "out");
      validating.all_gather(out, in, 0, Stream{}, "context");
    });
  };
  try {
    run();
    FAIL() << "nobody noticed";
  } catch (const RankMismatch& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("rank 1 against rank 0: in_shape [4] against [3]"));
  }
}

TEST(ValidatingCollective, SaysWhichCallTimedOut) {
  InProcessGroup group(2, {std::chrono::milliseconds(100)});
  const auto collective = group.join(0);
  const auto peer = group.join(1);
  ValidatingCollective validating(*collective, host_device());
  const Tensor in(host_device(), DType::kBytes, {1}, "in");
  const Tensor out(host_device(), DType::kBytes, {2}, "out");
  try {
    validating.all_gather(out, in, 0, Stream{}, "context");
    FAIL() << "nobody noticed";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("before all_gather #0 'context' dim 0"));
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 did not come"));
  }
}

}  // namespace
}  // namespace mladcp
