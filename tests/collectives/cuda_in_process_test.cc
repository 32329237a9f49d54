// The in-process group with its ranks' tensors on one card: the contract, and capture into a graph.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "collectives/in_process_group.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "tests/collectives/conformance.h"
#include "tests/support/cuda_streams.h"

namespace mladcp {
namespace {

class OneCardUnderTest final : public GroupUnderTest {
 public:
  explicit OneCardUnderTest(int world_size)
      : streams_(device_, world_size), group_(world_size, {}, device_) {}

  int world_size() const override { return group_.world_size(); }

  std::vector<std::string> run(const RankBody& body) override {
    std::mutex mutex;
    std::vector<std::string> findings;
    group_.run([&](Collective& collective) {
      RankUnderTest rank{collective, device_, streams_[collective.rank()]};
      const std::string finding = body(rank);
      const std::lock_guard lock(mutex);
      findings.push_back(finding);
    });
    return findings;
  }

 private:
  CudaDevice device_;
  RankStreams streams_;
  InProcessGroup group_;
};

std::vector<GroupCase> cases() {
  std::vector<GroupCase> result;
  for (const int n : {1, 2, 3, 8}) {
    result.push_back(
        {"OneCard" + std::to_string(n), [n] { return std::make_unique<OneCardUnderTest>(n); }});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Cuda, CollectiveConformance, testing::ValuesIn(cases()), case_name);

// One origin stream, forked to the rank streams, joined back: a replay moves what the inputs hold
// then, not what they held at capture.
TEST(InProcessGroupOnCuda, StepIsCapturedIntoOneGraph) {
  constexpr int kRanks = 4;
  CudaDevice device;
  const RankStreams streams(device, kRanks + 1);
  const Stream origin = streams[kRanks];
  std::vector<Tensor> ins;
  std::vector<Tensor> outs;
  std::vector<Tensor> sums;
  for (int r = 0; r < kRanks; ++r) {
    ins.emplace_back(device, DType::kF32, Shape{3, kRanks}, "in");
    outs.emplace_back(device, DType::kF32, Shape{3, kRanks * kRanks}, "out");
    sums.emplace_back(device, DType::kF32, Shape{3, kRanks}, "sum");
  }
  const Event fork = device.create_event();
  std::vector<Event> joins;
  for (int r = 0; r < kRanks; ++r) joins.push_back(device.create_event());

  InProcessGroup group(kRanks, {}, device);
  check_cuda(cudaStreamBeginCapture(cuda_stream(origin), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  device.record(fork, origin);
  for (int r = 0; r < kRanks; ++r) device.wait(streams[r], fork);
  group.run([&](Collective& collective) {
    const int r = collective.rank();
    collective.all_gather(outs[r], ins[r], 1, streams[r], "query");
    collective.reduce_scatter(sums[r], outs[r], 1, streams[r], "output");
    device.record(joins[r], streams[r]);
  });
  for (const Event join : joins) device.wait(origin, join);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamEndCapture(cuda_stream(origin), &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");

  for (int replay = 0; replay < 3; ++replay) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> values(3 * kRanks);
      for (int i = 0; i < 3 * kRanks; ++i) values[i] = static_cast<float>(100 * r + i + replay);
      device.copy_from_host(ins[r].view().data, values.data(), values.size() * sizeof(float),
                            origin);
    }
    check_cuda(cudaGraphLaunch(executable, cuda_stream(origin)), "cudaGraphLaunch");
    for (int r = 0; r < kRanks; ++r) {
      const Tensor sum = copied_to_host(sums[r], origin);
      for (int i = 0; i < 3 * kRanks; ++i) {
        // Every rank gathered the same, so a sum is the rank's own input, kRanks times.
        ASSERT_EQ(sum.as<float>()[i], static_cast<float>(kRanks * (100 * r + i + replay)))
            << "replay " << replay << " rank " << r << " element " << i;
      }
    }
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  device.destroy_event(fork);
  for (const Event join : joins) device.destroy_event(join);
}

}  // namespace
}  // namespace mladcp
