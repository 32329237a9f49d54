// A CUDA graph of what N ranks enqueue on their streams.
#pragma once

#include <functional>
#include <span>

#include "kernels/device/cuda_device.h"

namespace mladcp {

// Captured from one origin stream: forked to the rank streams by an event, joined back by one each.
// Separate captures per rank are refused by CUDA, because ranks wait for each other's events.
class CudaGraph {
 public:
  // Calls enqueue() once; what it enqueues on `streams`, from any threads, is recorded instead of
  // run. It must not allocate device memory on this thread, nor synchronise those streams.
  // CudaError naming the call; an exception of enqueue() ends the capture and is thrown on.
  CudaGraph(CudaDevice& device, std::span<const Stream> streams,
            const std::function<void()>& enqueue);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Runs everything once, ordered on `stream`.
  void launch(Stream stream) const;

 private:
  CudaDevice& device_;
  void* executable_ = nullptr;  // cudaGraphExec_t
};

}  // namespace mladcp
