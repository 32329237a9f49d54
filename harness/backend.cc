#include "harness/backend.h"

#include <string>

#include "core/error.h"
#include "harness/cpu_backend.h"
#include "harness/cuda_backend.h"
#include "harness/mpi_backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_backend(std::string_view device, std::string_view collective,
                                      int ranks, double timeout_s) {
  if (device != "cpu" && device != "cuda") {
    throw Unsupported("device " + std::string(device) +
                      ": there is none of that name; use --device cpu or cuda");
  }
  if (device == "cuda" && collective == "mpi") {
    throw Unsupported("collective mpi moves host memory; use --device cpu, or --collective nccl");
  }
  if (device == "cuda") {
    return collective == "nccl" ? make_nccl_backend(ranks, timeout_s) : make_cuda_backend(ranks);
  }
  if (collective == "nccl") {
    throw Unsupported("collective nccl moves GPU memory; use --device cuda, or --collective mpi");
  }
  return collective == "mpi" ? make_mpi_backend(ranks, timeout_s) : make_cpu_backend(ranks);
}

}  // namespace mladcp
