// The main program of test executables that need GPUs: skipped as a whole, with the reason, where
// there are too few.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

namespace {

constexpr int kSkipped = 77;  // what ctest takes for "skipped"

int visible_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    std::cout << "cudaGetDeviceCount: " << cudaGetErrorString(status) << '\n';
    return 0;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int count = visible_gpus();
  if (count < MLADCP_TEST_GPUS && !GTEST_FLAG_GET(list_tests)) {
    std::cout << "skipped: these tests need " << MLADCP_TEST_GPUS << " GPU(s), visible are "
              << count << '\n';
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
