// How an in-process group fails: at once or within the timeout, on every rank, and for good.
#include "collectives/in_process_group.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/support/collective_case.h"
#include "tests/support/handle_counts.h"

namespace mladcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr Stream kHostStream{};
constexpr InProcessOptions kShortWait{milliseconds(200)};

// What a rank's body threw: the kind and the message.
struct Outcome {
  std::string kind = "none";
  std::string message;
};

template <typename Call>
Outcome outcome_of(const Call& call) {
  try {
    call();
    return {};
  } catch (const RankMismatch& error) {
    return {"RankMismatch", error.what()};
  } catch (const Timeout& error) {
    return {"Timeout", error.what()};
  } catch (const AbortedByPeer& error) {
    return {"AbortedByPeer", error.what()};
  } catch (const std::exception& error) {
    return {"other", error.what()};
  }
}

void gather(Collective& collective, std::int64_t tokens = 3, const char* stage = "query") {
  const Tensor in(host_device(), DType::kBytes, {tokens, 2}, "in");
  const Tensor out(host_device(), DType::kBytes, {tokens, 2 * collective.world_size()}, "out");
  host_device().fill_bytes(in.view().data, 1, static_cast<std::size_t>(tokens) * 2, kHostStream);
  collective.all_gather(out, in, 1, kHostStream, stage);
}

// The outcome of each rank's body; exceptions end here, so that every rank's own is seen.
std::vector<Outcome> outcomes(InProcessGroup& group, const std::function<void(Collective&)>& body) {
  std::vector<Outcome> result(static_cast<std::size_t>(group.world_size()));
  const Outcome whole = outcome_of([&] {
    group.run([&](Collective& collective) {
      Outcome& mine = result[collective.rank()];
      mine = outcome_of([&] { body(collective); });
      if (mine.kind == "other") throw Error(mine.message);
    });
  });
  return result;
}

std::vector<std::unique_ptr<Collective>> joined_by_all(InProcessGroup& group) {
  std::vector<std::unique_ptr<Collective>> handles;
  for (int rank = 0; rank < group.world_size(); ++rank) handles.push_back(group.join(rank));
  return handles;
}

// The outcomes of one call on ranks 0 and 2, one thread each, while the others do as they are.
std::vector<Outcome> outcomes_of_ranks_0_and_2(
    const std::vector<std::unique_ptr<Collective>>& handles,
    const std::function<void(Collective&)>& call) {
  std::vector<Outcome> seen(handles.size());
  std::vector<std::jthread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] { seen[rank] = outcome_of([&] { call(*handles[rank]); }); });
  }
  threads.clear();  // joins
  return seen;
}

TEST(InProcessGroup, MissingRankIsNamedAfterTheTimeout) {
  InProcessGroup group(4, kShortWait);
  const auto begin = Clock::now();
  // Ranks 0 and 2 come; 1 and 3 stay, joined, until the others have given up.
  const std::vector<std::unique_ptr<Collective>> handles = joined_by_all(group);
  const std::vector<Outcome> seen =
      outcomes_of_ranks_0_and_2(handles, [](Collective& collective) { gather(collective); });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(seen[rank].kind, "Timeout");
    EXPECT_EQ(seen[rank].message,
              "ranks 1, 3 did not come within 200 ms; ranks 0, 2 wait in all_gather #0 'query' dim "
              "1 bytes [3, 2] -> [3, 8]");
  }
  EXPECT_GE(Clock::now() - begin, milliseconds(200));
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  // Who comes late hears of it, and so does everybody later.
  for (const int rank : {3, 0}) {
    const Outcome late = outcome_of([&] { gather(*handles[rank]); });
    EXPECT_EQ(late.kind, "Timeout");
    EXPECT_EQ(late.message.find("the group is refused since: ranks 1, 3 did not come"), 0U);
  }
}

TEST(InProcessGroup, DifferingCallsGiveOneMessageToAll) {
  InProcessGroup group(3, kShortWait);
  const std::vector<Outcome> seen = outcomes(group, [](Collective& collective) {
    gather(collective);
    gather(collective, 3, collective.rank() == 1 ? "lse" : "output");
  });
  for (const Outcome& outcome : seen) {
    EXPECT_EQ(outcome.kind, "RankMismatch");
    EXPECT_EQ(
        outcome.message,
        "ranks disagree: ranks 0, 2 call all_gather #1 'output' dim 1 bytes [3, 2] -> [3, 6]; "
        "rank 1 calls all_gather #1 'lse' dim 1 bytes [3, 2] -> [3, 6]; "
        "rank 1 against rank 0: stage lse against output");
  }
  EXPECT_THROW(group.run([](Collective&) {}), RankMismatch);
}

// Fault 37 of docs/faults.md: one rank returns early on an empty shard.
TEST(InProcessGroup, EarlyReturnAbortsTheOthersAtOnce) {
  InProcessGroup group(3, {std::chrono::seconds(60)});
  const auto begin = Clock::now();
  const std::vector<Outcome> seen = outcomes(group, [](Collective& collective) {
    gather(collective);
    if (collective.rank() == 1) return;
    gather(collective, 3, "lse");
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(seen[1].kind, "none");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(seen[rank].kind, "AbortedByPeer");
    EXPECT_EQ(seen[rank].message,
              "rank 1 left the group after 1 calls, but ranks 0, 2 wait in all_gather #1 'lse' dim "
              "1 bytes [3, 2] -> [3, 6]");
  }
}

// Whoever comes first waits for the other: the message does not depend on the order.
TEST(InProcessGroup, RanksThatLeftAreNamedOnceAllOthersWait) {
  InProcessGroup group(4, {std::chrono::seconds(60)});
  std::vector<std::unique_ptr<Collective>> handles = joined_by_all(group);
  for (const int rank : {1, 3}) handles[rank].reset();
  const std::vector<Outcome> seen = outcomes_of_ranks_0_and_2(handles, [](Collective& collective) {
    gather(collective, 3, collective.rank() == 0 ? "query" : "lse");
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(seen[rank].kind, "AbortedByPeer");
    EXPECT_EQ(seen[rank].message,
              "rank 1 left the group after 0 calls, rank 3 left the group after 0 calls, but rank "
              "0 waits in "
              "all_gather #0 'query' dim 1 bytes [3, 2] -> [3, 8], rank 2 waits in all_gather #0 "
              "'lse' dim 1 bytes [3, 2] -> [3, 8]");
  }
}

TEST(InProcessGroup, RankThatLeftIsNamedWhenAnotherOneDoesNotComeEither) {
  InProcessGroup group(4, kShortWait);
  std::vector<std::unique_ptr<Collective>> handles = joined_by_all(group);
  handles[1].reset();
  const std::vector<Outcome> seen =
      outcomes_of_ranks_0_and_2(handles, [](Collective& collective) { gather(collective); });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(seen[rank].kind, "AbortedByPeer");
    EXPECT_EQ(seen[rank].message,
              "rank 1 left the group after 0 calls, rank 3 did not come within 200 ms, but ranks "
              "0, 2 wait in all_gather #0 'query' dim 1 bytes [3, 2] -> [3, 8]");
  }
}

TEST(InProcessGroup, ThrowingRankAbortsTheOthersWithItsMessage) {
  InProcessGroup group(3, {std::chrono::seconds(60)});
  const std::vector<Outcome> seen = outcomes(group, [](Collective& collective) {
    gather(collective);
    if (collective.rank() == 2) throw Unsupported("no such combine");
    gather(collective);
  });
  EXPECT_EQ(seen[2].kind, "other");
  for (const int rank : {0, 1}) {
    EXPECT_EQ(seen[rank].kind, "AbortedByPeer");
    EXPECT_NE(seen[rank].message.find("rank 2 failed: no such combine"), std::string::npos);
  }
}

TEST(InProcessGroup, RunThrowsTheErrorThatCameFirstNotItsEchoes) {
  InProcessGroup group(4, kShortWait);
  EXPECT_THROW(group.run([](Collective& collective) {
    if (collective.rank() == 3) throw Unsupported("no such combine");
    gather(collective);
  }),
               Unsupported);
  EXPECT_THROW(group.run([](Collective&) {}), AbortedByPeer);
}

TEST(InProcessGroup, RefusedCallOnOneRankAbortsTheOthers) {
  InProcessGroup group(2, {std::chrono::seconds(60)});
  EXPECT_THROW(group.run([](Collective& collective) {
    const Tensor in(host_device(), DType::kE4M3, {4, 2}, "codes");
    const Tensor out(host_device(), DType::kE4M3, {2, 2}, "sum");
    if (collective.rank() == 0) {
      collective.reduce_scatter(out, in, 0, kHostStream, "output");
    } else {
      gather(collective);
    }
  }),
               InvalidArgument);
}

TEST(InProcessGroup, RunsAgainAfterAllRanksLeft) {
  InProcessGroup group(3, kShortWait);
  for (int repeat = 0; repeat < 3; ++repeat) {
    group.run([](Collective& collective) { gather(collective); });
  }
}

TEST(InProcessGroup, HandlesAreOnePerRankAndMayOutliveTheGroup) {
  auto group = std::make_unique<InProcessGroup>(1, kShortWait);
  const std::unique_ptr<Collective> handle = group->join(0);
  EXPECT_THROW(group->join(0), InvalidArgument);
  EXPECT_THROW(group->join(1), InvalidArgument);
  EXPECT_THROW(group->join(-1), InvalidArgument);
  EXPECT_THROW(InProcessGroup(0), InvalidArgument);
  group.reset();
  gather(*handle);
}

TEST(InProcessGroup, EndsItsEventsAlsoWhereOneCannotBeMade) {
  HandleCounts device;
  { const InProcessGroup group(3, kShortWait, device); }
  const int made = device.made();
  EXPECT_EQ(made, 6);
  EXPECT_EQ(device.alive(), 0);
  for (int failing = 0; failing < made; ++failing) {
    HandleCounts poor(failing);
    EXPECT_THROW(InProcessGroup(3, kShortWait, poor), Error);
    EXPECT_EQ(poor.made(), failing);
    EXPECT_EQ(poor.alive(), 0);
  }
}

TEST(InProcessGroup, TensorsMustBeOnTheGroupsDevice) {
  InProcessGroup group(1, kShortWait);
  const std::unique_ptr<Collective> handle = group.join(0);
  const Tensor in(host_device(), DType::kF32, {2}, "in");
  TensorView out = in;
  out.device = nullptr;
  EXPECT_THROW(handle->all_gather(out, in, 0, kHostStream, "query"), InvalidArgument);
}

// The default stack is made larger than any machine has memory: no thread can start.
TEST(InProcessGroup, ARankWithoutAThreadFailsWithARemedy) {
  pthread_attr_t usual;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  pthread_attr_t huge = usual;
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  InProcessGroup group(3, kShortWait);
  const Outcome outcome =
      outcome_of([&] { group.run([](Collective& collective) { gather(collective); }); });
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(outcome.message,
            "rank 0 of 3 got no thread: Resource temporarily unavailable; use fewer ranks (tp, "
            "dcp), or allow more threads and memory (ulimit -u, -v)");
}

// 16 ranks, 10,000 mixed calls: the data race and deadlock test, run under ThreadSanitizer too.
TEST(InProcessGroupStress, SixteenRanksMakeTenThousandMixedCalls) {
  constexpr int kRanks = 16;
  constexpr int kCalls = 10000;
  InProcessGroup group(kRanks);
  std::mutex mutex;
  std::vector<std::string> findings;
  group.run([&](Collective& collective) {
    const int r = collective.rank();
    const Tensor one(host_device(), DType::kF32, {1, 2}, "one");
    const Tensor all(host_device(), DType::kF32, {1, 2 * kRanks}, "all");
    const Tensor sum(host_device(), DType::kF32, {1, 2}, "sum");
    const Tensor blocks(host_device(), DType::kF32, {kRanks, 2}, "blocks");
    const Tensor swapped(host_device(), DType::kF32, {kRanks, 2}, "swapped");
    int wrong = 0;
    for (int i = 0; i < kCalls; ++i) {
      switch (i % 3) {
        case 0:
          for (int j = 0; j < 2; ++j) one.as<float>()[j] = static_cast<float>(r + i + j);
          collective.all_gather(all, one, 1, kHostStream, "query");
          for (int k = 0; k < 2 * kRanks; ++k) {
            wrong += all.as<float>()[k] != static_cast<float>(k / 2 + i + k % 2);
          }
          break;
        case 1:
          for (int k = 0; k < 2 * kRanks; ++k) all.as<float>()[k] = static_cast<float>(k * r + i);
          collective.reduce_scatter(sum, all, 1, kHostStream, "output");
          for (int j = 0; j < 2; ++j) {
            wrong += sum.as<float>()[j] != static_cast<float>((2 * r + j) * 120 + 16 * i);
          }
          break;
        default:
          for (int k = 0; k < 2 * kRanks; ++k) {
            blocks.as<float>()[k] = static_cast<float>(100 * r + k + i);
          }
          collective.all_to_all(swapped, blocks, kHostStream, "lse");
          for (int k = 0; k < 2 * kRanks; ++k) {
            wrong +=
                swapped.as<float>()[k] != static_cast<float>(100 * (k / 2) + 2 * r + k % 2 + i);
          }
      }
    }
    const std::lock_guard lock(mutex);
    if (wrong != 0) findings.push_back("rank " + std::to_string(r) + ": " + std::to_string(wrong));
  });
  EXPECT_EQ(findings, std::vector<std::string>{});
}

}  // namespace
}  // namespace mladcp
