#include "kernels/device/cuda_graph.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

// Streams and events of one capture, given back whatever happens.
class Capture {
 public:
  Capture(CudaDevice& device, std::span<const Stream> streams)
      : device_(device), streams_(streams), origin_(device.create_stream()) {
    for (std::size_t i = 0; i <= streams.size(); ++i) events_.push_back(device.create_event());
    check_cuda(cudaStreamBeginCapture(cuda_stream(origin_), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    capturing_ = true;
    device.record(events_[0], origin_);
    for (const Stream stream : streams) device.wait(stream, events_[0]);
  }

  ~Capture() {
    cudaGraph_t graph = nullptr;
    if (capturing_ && cudaStreamEndCapture(cuda_stream(origin_), &graph) == cudaSuccess) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
    static_cast<void>(cudaGetLastError());  // of an abandoned capture
    for (const Event event : events_) device_.destroy_event(event);
    device_.destroy_stream(origin_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t end() {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      device_.record(events_[i + 1], streams_[i]);
      device_.wait(origin_, events_[i + 1]);
    }
    cudaGraph_t graph = nullptr;
    capturing_ = false;
    check_cuda(cudaStreamEndCapture(cuda_stream(origin_), &graph), "cudaStreamEndCapture");
    return graph;
  }

 private:
  CudaDevice& device_;
  std::span<const Stream> streams_;
  Stream origin_;
  std::vector<Event> events_;
  bool capturing_ = false;
};

}  // namespace

CudaGraph::CudaGraph(CudaDevice& device, std::span<const Stream> streams,
                     const std::function<void()>& enqueue)
    : device_(device) {
  const DeviceGuard guard(device.index());
  Capture capture(device, streams);
  enqueue();
  cudaGraph_t graph = capture.end();
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check_cuda(status, "cudaGraphInstantiate");
  executable_ = executable;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr)
    static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
}

void CudaGraph::launch(Stream stream) const {
  const DeviceGuard guard(device_.index());
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), cuda_stream(stream)),
             "cudaGraphLaunch");
}

}  // namespace mladcp
