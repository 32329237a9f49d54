// A card with one stream a rank, for tests.
#pragma once

#include <vector>

#include "kernels/device/cuda_device.h"

namespace mladcp {

class RankStreams {
 public:
  RankStreams(CudaDevice& device, int world_size) : device_(device) {
    for (int r = 0; r < world_size; ++r) streams_.push_back(device.create_stream());
  }
  ~RankStreams() {
    for (const Stream stream : streams_) device_.destroy_stream(stream);
  }
  RankStreams(const RankStreams&) = delete;
  RankStreams& operator=(const RankStreams&) = delete;

  Stream operator[](int rank) const { return streams_[rank]; }

 private:
  CudaDevice& device_;
  std::vector<Stream> streams_;
};

}  // namespace mladcp
