// What every GPU test starts from: one card and one stream, or a skip that says why; copies to and
// fro.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_device.h"
#include "tests/reference/host_tensors.h"

namespace mladcp {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (available_cuda_devices().empty()) GTEST_SKIP() << "no CUDA device is visible";
    stream_ = device().create_stream();
  }
  void TearDown() override {
    if (stream_.handle == nullptr) return;
    device().synchronize(stream_);  // a late error belongs to this test
    device().destroy_stream(stream_);
  }

  // One device and a few operation sets serve all tests of a process: a cuBLAS handle takes a tenth
  // of a second.
  static CudaDevice& device() {
    static CudaDevice& shared = *new CudaDevice(0);
    return shared;
  }
  static CudaOps& ops_of_rank(std::size_t rank) {
    static auto& pool = *new std::vector<std::unique_ptr<CudaOps>>;
    while (pool.size() <= rank) pool.push_back(std::make_unique<CudaOps>(device()));
    return *pool[rank];
  }
  Stream stream() const { return stream_; }

  Tensor upload(const TensorView& host) { return copied_to_device(host, device(), stream_); }
  Tensor download(const TensorView& view) { return copied_to_host(view, stream_); }

  // A fresh tensor of NaN bytes: what an operation leaves unwritten shows.
  Tensor poisoned(DType dtype, const Shape& shape, const char* name) {
    Tensor tensor(device(), dtype, shape, name);
    device().fill_bytes(tensor.view().data, 0xFF, static_cast<std::size_t>(tensor.view().bytes()),
                        stream_);
    return tensor;
  }

  // A device copy whose rows lie apart: a narrowed view of a wider, poisoned tensor. `pad` elements
  // on either side keep or break alignment.
  TensorView strided(const TensorView& host, Tensor& storage, std::int64_t pad) {
    const int last = host.rank() - 1;
    Shape wide = host.shape;
    wide[last] += 2 * pad;
    storage = poisoned(host.dtype, wide, host.name);
    const TensorView view = storage.view().narrow(last, pad, host.shape[last]);
    const Tensor dense = upload(host);
    device().copy_strided(view, dense, stream_);
    device().synchronize(stream_);
    return view;
  }

 private:
  Stream stream_;
};

// Bytes must be equal; says where the first difference is.
inline void expect_same_bytes(const char* what, const TensorView& got, const TensorView& wanted) {
  ASSERT_TRUE(got.shape == wanted.shape)
      << what << ": " << describe(got) << " against " << describe(wanted);
  const std::vector<unsigned char> a = bytes_of(got);
  const std::vector<unsigned char> b = bytes_of(wanted);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i], b[i]) << what << " " << describe(got) << ": byte " << i << ", element "
                          << i / size_bytes(got.dtype);
  }
}

}  // namespace mladcp
