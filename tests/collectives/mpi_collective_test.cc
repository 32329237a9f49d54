// How a group of processes fails: within the timeout, on every rank, and for good. Run by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "core/error.h"
#include "tests/support/mpi_world_under_test.h"

namespace mladcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

constexpr Stream kHostStream{};
constexpr MpiOptions kShortWait{0, milliseconds(500)};
constexpr MpiOptions kLongWait{0, std::chrono::seconds(60)};

void gather(Collective& collective, std::int64_t bytes = 3, const char* stage = "query") {
  const Tensor in(host_device(), DType::kBytes, {bytes}, "in");
  const Tensor out(host_device(), DType::kBytes, {bytes * collective.world_size()}, "out");
  host_device().fill_bytes(in.view().data, static_cast<unsigned char>(collective.rank()),
                           static_cast<std::size_t>(bytes), kHostStream);
  collective.all_gather(out, in, 0, kHostStream, stage);
  for (int s = 0; s < collective.world_size(); ++s) {
    ASSERT_EQ(out.as<unsigned char>()[s * bytes + bytes - 1], s);
  }
}

template <typename Kind, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing of that kind";
}

// More than an eager message holds, so that sender and receiver have to meet.
TEST(MpiCollective, MovesLargeBlocks) {
  const auto collective = mpi_world_under_test().make_collective(kLongWait);
  gather(*collective, 3'000'001);
}

TEST(MpiCollective, GroupsOfConsecutiveProcessesAreIndependent) {
  MpiWorld& world = mpi_world_under_test();
  if (world.size() % 2 != 0) GTEST_SKIP() << "needs an even number of processes";
  const auto collective = world.make_collective({2, std::chrono::seconds(60)});
  EXPECT_EQ(collective->world_size(), 2);
  EXPECT_EQ(collective->rank(), world.rank() % 2);
  const Tensor in(host_device(), DType::kI32, {1}, "in");
  const Tensor out(host_device(), DType::kI32, {2}, "out");
  in.as<std::int32_t>()[0] = world.rank();
  collective->all_gather(out, in, 0, kHostStream, "query");
  EXPECT_EQ(out.as<std::int32_t>()[0], world.rank() / 2 * 2);
  EXPECT_EQ(out.as<std::int32_t>()[1], world.rank() / 2 * 2 + 1);
}

TEST(MpiCollective, GroupSizeMustDivideTheWorld) {
  MpiWorld& world = mpi_world_under_test();
  EXPECT_THROW(world.make_collective({world.size() + 1, milliseconds(1)}), InvalidArgument);
  EXPECT_THROW(world.make_collective({-1, milliseconds(1)}), InvalidArgument);
}

TEST(MpiCollective, MissingRankIsNamedAndHearsOfIt) {
  MpiWorld& world = mpi_world_under_test();
  if (world.size() == 1) GTEST_SKIP() << "needs a peer";
  const auto collective = world.make_collective(kShortWait);
  const auto others_gave_up = world.make_collective(kLongWait);
  if (world.rank() == 1) {
    gather(*others_gave_up);
    EXPECT_THAT(message_of<Timeout>([&] { gather(*collective); }),
                HasSubstr("the group is refused since: rank 1 did not come within 500 ms; rank"));
    return;
  }
  const std::string message = message_of<Timeout>([&] { gather(*collective); });
  EXPECT_THAT(message, HasSubstr("rank 1 did not come within 500 ms; rank"));
  EXPECT_THAT(message, HasSubstr("waits in all_gather #0 'query' dim 0 bytes [3]"));
  gather(*others_gave_up);
  EXPECT_THAT(message_of<Timeout>([&] { gather(*collective); }), HasSubstr("is refused since"));
}

// Fault 37 of docs/faults.md: one rank returns early on an empty shard.
TEST(MpiCollective, EarlyReturnAbortsTheOthersAtOnce) {
  MpiWorld& world = mpi_world_under_test();
  if (world.size() == 1) GTEST_SKIP() << "needs a peer";
  auto collective = world.make_collective(kLongWait);
  gather(*collective);
  if (world.rank() == 1) {
    collective.reset();
    return;
  }
  const auto begin = Clock::now();
  const std::string message = message_of<AbortedByPeer>([&] { gather(*collective, 3, "lse"); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(message, HasSubstr("rank 1 left the group after 1 calls, but rank"));
  EXPECT_THAT(message, HasSubstr("waits in all_gather #1 'lse'"));
}

// A rank that is done may leave while the others still finish the same call.
TEST(MpiCollective, LeavingAfterTheLastCallHarmsNobody) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto collective = mpi_world_under_test().make_collective(kLongWait);
    for (int call = 0; call < 5; ++call) gather(*collective);
  }
}

TEST(MpiCollective, DifferingStagesGiveOneMessageToAll) {
  MpiWorld& world = mpi_world_under_test();
  if (world.size() == 1) GTEST_SKIP() << "needs a peer";
  const auto collective = world.make_collective(kLongWait);
  const std::string message = message_of<RankMismatch>(
      [&] { gather(*collective, 3, world.rank() == 0 ? "output" : "lse"); });
  EXPECT_THAT(message, HasSubstr("rank 0 calls all_gather #0 'output'"));
  EXPECT_THAT(message, HasSubstr("against rank 0: stage lse against output"));
}

TEST(MpiCollective, TensorsMustBeInHostMemory) {
  const auto collective = mpi_world_under_test().make_collective(kLongWait);
  const Tensor in(host_device(), DType::kBytes, {1}, "in");
  const Tensor all(host_device(), DType::kBytes, {collective->world_size()}, "out");
  TensorView elsewhere = all;
  elsewhere.device = nullptr;
  EXPECT_THROW(collective->all_gather(elsewhere, in, 0, kHostStream, "query"), InvalidArgument);
}

TEST(MpiWorld, GathersReportsAtProcessZero) {
  MpiWorld& world = mpi_world_under_test();
  const std::string mine(static_cast<std::size_t>(world.rank()) * 70'000, 'x');
  const std::vector<std::string> all = world.gather_at_root(mine);
  if (world.rank() != 0) {
    EXPECT_TRUE(all.empty());
    return;
  }
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (std::size_t process = 0; process < all.size(); ++process) {
    EXPECT_EQ(all[process], std::string(process * 70'000, 'x'));
  }
}

// Messages too long to be on their way before the receiver asks for them.
TEST(MpiWorld, GathersEverywhereWhatEachProcessHandsIn) {
  MpiWorld& world = mpi_world_under_test();
  const auto contribution = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 1'000'000, static_cast<char>('a' + rank));
  };
  const std::vector<std::string> all = world.gather_everywhere(contribution(world.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_TRUE(all[static_cast<std::size_t>(rank)] == contribution(rank)) << "of process " << rank;
  }
}

TEST(MpiWorld, StartsOnceAProcess) {
  EXPECT_TRUE(MpiWorld::launched());
  EXPECT_THROW(MpiWorld(), MpiError);
}

}  // namespace
}  // namespace mladcp
