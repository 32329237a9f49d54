// Stands in for nccl_backend.cc in a build without NCCL.
#include "core/error.h"
#include "harness/cuda_backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_nccl_backend(int, double) {
  throw Unsupported(
      "collective nccl: this program was built without NCCL; install NCCL (NCCL_HOME names its "
      "folder) and build again with cmake --preset cuda, or use --collective in_process");
}

}  // namespace mladcp
