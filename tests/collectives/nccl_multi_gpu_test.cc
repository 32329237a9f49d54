// NCCL between GPUs: the contract, graphs, failures (fault 37 of docs/faults.md), and one process a
// GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/validating_collective.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "tests/collectives/conformance.h"
#include "tests/support/nccl_under_test.h"

namespace mladcp {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

INSTANTIATE_TEST_SUITE_P(TwoGpus, CollectiveConformance, testing::ValuesIn(nccl_cases(2)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(FourGpus, CollectiveConformance, testing::ValuesIn(nccl_cases(4)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(EightGpus, CollectiveConformance, testing::ValuesIn(nccl_cases(8)),
                         case_name);

// The kind and message of what each rank's body threw, and how long all took.
struct Outcomes {
  std::vector<std::string> messages = std::vector<std::string>(2, "nothing");
  double seconds_taken = 0.0;
};

struct Rank {
  Collective& collective;
  CudaDevice& device;
  Stream stream;
};

void gather(const Rank& rank, const char* stage = "query", std::int64_t tokens = 3) {
  const Tensor in(rank.device, DType::kE4M3, {tokens, 64}, "in");
  const Tensor out(rank.device, DType::kE4M3, {tokens, 128}, "out");
  rank.device.fill_bytes(in.view().data, 1, static_cast<std::size_t>(in.view().bytes()),
                         rank.stream);
  rank.collective.all_gather(out, in, 1, rank.stream, stage);
  rank.collective.synchronize(rank.stream);
}

Outcomes outcomes(seconds timeout, const std::function<void(const Rank&)>& body) {
  Cards cards(2);
  Outcomes result;
  const Clock::time_point begin = Clock::now();
  {
    NcclGroup group(cards.devices(), {timeout});
    group.run([&](Collective& collective) {
      const int r = collective.rank();
      try {
        body({collective, cards.device(r), cards.stream(r)});
      } catch (const Timeout& error) {
        result.messages[r] = std::string("Timeout ") + error.what();
      } catch (const RankMismatch& error) {
        result.messages[r] = std::string("RankMismatch ") + error.what();
      } catch (const AbortedByPeer& error) {
        result.messages[r] = std::string("AbortedByPeer ") + error.what();
      }
    });
  }
  result.seconds_taken = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

TEST(NcclFailures, EarlyReturnTimesOutAndNamesTheCall) {
  const Outcomes seen = outcomes(seconds(3), [](const Rank& rank) {
    gather(rank);
    if (rank.collective.rank() == 1) return;  // its shard is empty, it thinks
    gather(rank, "lse");
  });
  EXPECT_EQ(seen.messages[1], "nothing");
  EXPECT_THAT(seen.messages[0], HasSubstr("Timeout all_gather #1 'lse' dim 1 e4m3"));
  EXPECT_THAT(seen.messages[0],
              HasSubstr("on rank 0 did not complete within 3000 ms: rank 1 is missing, dead"));
  EXPECT_LT(seen.seconds_taken, 30.0);
}

TEST(NcclFailures, GroupStaysRefusedAfterATimeout) {
  const Outcomes seen = outcomes(seconds(3), [](const Rank& rank) {
    if (rank.collective.rank() == 1) return;
    try {
      gather(rank);
    } catch (const Timeout&) {
      gather(rank);
    }
  });
  EXPECT_THAT(seen.messages[0], HasSubstr("the group is refused since: all_gather #0 'query'"));
}

TEST(NcclFailures, ValidatedMismatchGivesOneMessageToBoth) {
  const Outcomes seen = outcomes(seconds(20), [](const Rank& rank) {
    ValidatingCollective validating(rank.collective, rank.device);
    const Rank validated{validating, rank.device, rank.stream};
    gather(validated);
    gather(validated, "context", 3 + rank.collective.rank());
  });
  EXPECT_EQ(seen.messages[0], seen.messages[1]);
  EXPECT_THAT(seen.messages[0],
              HasSubstr("RankMismatch ranks disagree: rank 0 calls all_gather #1"));
  EXPECT_THAT(seen.messages[0],
              HasSubstr("rank 1 against rank 0: in_shape [4, 64] against [3, 64]"));
}

TEST(NcclFailures, ThrowingRankAbortsItsPeer) {
  Cards cards(2);
  NcclGroup group(cards.devices(), {seconds(60)});
  std::string peer = "nothing";
  const Clock::time_point begin = Clock::now();
  EXPECT_THROW(group.run([&](Collective& collective) {
    const int r = collective.rank();
    if (r == 1) throw Unsupported("no such combine");
    try {
      gather({collective, cards.device(0), cards.stream(0)});
    } catch (const AbortedByPeer& error) {
      peer = error.what();
    }
  }),
               Unsupported);
  EXPECT_THAT(peer, HasSubstr("rank 1 failed: no such combine"));
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

// A step in a graph: inputs change between replays.
TEST(NcclGraphs, CollectivesAreCaptured) {
  constexpr int kTokens = 3;
  Cards cards(2);
  NcclGroup group(cards.devices());
  std::mutex mutex;
  std::vector<std::string> findings;
  group.run([&](Collective& collective) {
    const int r = collective.rank();
    CudaDevice& device = cards.device(r);
    const Stream stream = cards.stream(r);
    const DeviceGuard guard(device.index());
    const Tensor in(device, DType::kF32, {kTokens, 2}, "in");
    const Tensor gathered(device, DType::kF32, {kTokens, 4}, "gathered");
    const Tensor summed(device, DType::kF32, {kTokens, 2}, "summed");
    const auto step = [&] {
      collective.all_gather(gathered, in, 1, stream, "query");
      collective.reduce_scatter(summed, gathered, 1, stream, "output");
    };
    device.fill_bytes(in.view().data, 0, kTokens * 2 * sizeof(float), stream);
    step();  // connects, and sizes the scratch memory
    collective.synchronize(stream);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(cuda_stream(stream), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    step();
    check_cuda(cudaStreamEndCapture(cuda_stream(stream), &graph), "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int replay = 1; replay < 4; ++replay) {
      std::vector<float> values(kTokens * 2);
      for (int i = 0; i < kTokens * 2; ++i)
        values[i] = static_cast<float>(100 * r + 10 * replay + i);
      device.copy_from_host(in.view().data, values.data(), values.size() * sizeof(float), stream);
      check_cuda(cudaGraphLaunch(executable, cuda_stream(stream)), "cudaGraphLaunch");
      collective.synchronize(stream);
      const Tensor got = copied_to_host(summed, stream);
      for (int i = 0; i < kTokens * 2; ++i) {
        if (got.as<float>()[i] == 2 * values[i]) continue;
        const std::lock_guard lock(mutex);
        findings.push_back("rank " + std::to_string(r) + " replay " + std::to_string(replay));
      }
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
  EXPECT_EQ(findings, std::vector<std::string>{});
}

// One process a GPU: the executable starts itself once a rank, with a launcher's variables and the
// name of what the children are to play.
constexpr const char* kScenario = "MLADCP_TEST_NCCL_SCENARIO";

// 3 when the failure names the survivor's call and the rank that is gone.
int status_of_failure(const std::string& message, const std::string& call) {
  const bool named = message.find(call) != std::string::npos;
  const bool blamed = message.find("rank 1 is missing, dead") != std::string::npos ||
                      message.find("did not complete") == std::string::npos;
  return named && blamed ? 3 : 4;
}

// What a child process does; its exit status is the verdict.
int run_as_process(const std::string& scenario) {
  const auto environment = launch_environment([](const char* name) { return std::getenv(name); });
  Cards cards(environment->local_rank + 1);
  CudaDevice& device = cards.device(environment->local_rank);
  const Stream stream = cards.stream(environment->local_rank);
  const auto collective = connect_nccl(*environment, device, 0, {seconds(5)});
  const Rank rank{*collective, device, stream};
  const bool dies = environment->rank == 1;
  std::string call = "all_gather #0 'query'";
  try {
    if (scenario == "killed first" && dies) raise(SIGKILL);
    gather(rank);
    call = "all_gather #1 'lse'";
    if (scenario == "killed" && dies) raise(SIGKILL);
    gather(rank, "lse");
  } catch (const Timeout& error) {
    return status_of_failure(error.what(), call);
  } catch (const NcclError& error) {
    return status_of_failure(error.what(), call);
  }
  return 0;
}

TEST(NcclProcess, PlaysItsPart) {
  const char* scenario = std::getenv(kScenario);
  if (scenario == nullptr) GTEST_SKIP() << "only as a child of the tests below";
  _exit(run_as_process(scenario));
}

pid_t start_process(const std::string& scenario, int rank, int port) {
  const pid_t child = fork();
  if (child != 0) return child;
  setenv(kScenario, scenario.c_str(), 1);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  execl("/proc/self/exe", "collectives_multigpu_tests", "--gtest_filter=NcclProcess.PlaysItsPart",
        nullptr);
  _exit(127);
}

std::vector<int> statuses(const std::string& scenario, int port) {
  const pid_t children[] = {start_process(scenario, 0, port), start_process(scenario, 1, port)};
  std::vector<int> result;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    result.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return result;
}

TEST(NcclProcesses, MeetByTheVariablesOfALauncher) {
  EXPECT_EQ(statuses("fine", 29521), (std::vector<int>{0, 0}));
}

// Fault 37: the survivor gets an error that names the call, within the timeout.
TEST(NcclProcesses, KilledPeerIsAnErrorNotAHang) {
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(statuses("killed", 29522), (std::vector<int>{3, -SIGKILL}));
  EXPECT_LT(Clock::now() - begin, seconds(60));
}

// The first call connects the cards: NCCL waits elsewhere then.
TEST(NcclProcesses, PeerKilledBeforeItsFirstCallIsAnErrorNotAHang) {
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(statuses("killed first", 29523), (std::vector<int>{3, -SIGKILL}));
  EXPECT_LT(Clock::now() - begin, seconds(60));
}

}  // namespace
}  // namespace mladcp
