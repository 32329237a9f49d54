// What of NCCL one GPU can show: a group of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/collectives/conformance.h"
#include "tests/support/nccl_under_test.h"

namespace mladcp {
namespace {

INSTANTIATE_TEST_SUITE_P(OneGpu, CollectiveConformance, testing::ValuesIn(nccl_cases(1)),
                         case_name);

TEST(NcclCollective, RefusesTensorsElsewhereAndImpossibleRanks) {
  Cards cards(1);
  NcclCollective collective(make_nccl_id(), 0, 1, cards.device(0));
  const Tensor on_host(host_device(), DType::kF32, {2}, "on_host");
  EXPECT_THROW(collective.all_gather(on_host, on_host, 0, cards.stream(0), "query"),
               InvalidArgument);
  EXPECT_THROW(NcclCollective(make_nccl_id(), 1, 1, cards.device(0)), InvalidArgument);
  EXPECT_THROW(NcclGroup({}), InvalidArgument);
}

// Nobody else comes: the constructor gives up in time instead of waiting for ever.
TEST(NcclCollective, MissingProcessIsATimeoutWhenConnecting) {
  Cards cards(1);
  try {
    NcclCollective collective(make_nccl_id(), 0, 2, cards.device(0), {std::chrono::seconds(2)});
    FAIL() << "connected to nobody";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("connecting rank 0 of 2"));
  }
}

TEST(NcclCollective, AbortedGroupStaysRefused) {
  Cards cards(1);
  NcclCollective collective(make_nccl_id(), 0, 1, cards.device(0));
  collective.abort("rank 7 failed: no such combine");
  const Tensor in(cards.device(0), DType::kF32, {2}, "in");
  const Tensor out(cards.device(0), DType::kF32, {2}, "out");
  try {
    collective.all_gather(out, in, 0, cards.stream(0), "query");
    FAIL() << "accepted";
  } catch (const AbortedByPeer& error) {
    EXPECT_STREQ(error.what(), "the group is refused since: rank 7 failed: no such combine");
  }
  EXPECT_THROW(collective.synchronize(cards.stream(0)), AbortedByPeer);
}

// The variables of a launcher of one process, and NCCL's own bootstrap at the address they give.
TEST(ConnectNccl, MeetsAtTheAddressOfRankZero) {
  Cards cards(1);
  LaunchEnvironment environment;
  environment.root_address = "127.0.0.1";
  environment.root_port = 29511;
  const auto collective = connect_nccl(environment, cards.device(0));
  EXPECT_EQ(collective->world_size(), 1);
  EXPECT_EQ(std::getenv("NCCL_COMM_ID"), nullptr);
  EXPECT_THROW(connect_nccl(environment, cards.device(0), 2), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
