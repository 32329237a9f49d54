#include "harness/backend.h"

#include <string>

#include "core/error.h"
#include "harness/cpu_backend.h"
#include "harness/mpi_backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_backend(std::string_view device, std::string_view collective,
                                      int ranks, double timeout_s) {
  if (device == "cpu" && collective == "mpi") return make_mpi_backend(ranks, timeout_s);
  if (device == "cpu") return make_cpu_backend(ranks);
  throw Unsupported("device " + std::string(device) +
                    ": this program was built without it; use --device cpu");
}

}  // namespace mladcp
