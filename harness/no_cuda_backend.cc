// Stands in for cuda_backend.cc in a build without CUDA.
#include "core/error.h"
#include "harness/cuda_backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_cuda_backend(int) {
  throw Unsupported(
      "device cuda: this program was built without CUDA; install the CUDA toolkit and build again "
      "with cmake --preset cuda, or use --device cpu");
}

}  // namespace mladcp
