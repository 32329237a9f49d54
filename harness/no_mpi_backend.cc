// Stands in for mpi_backend.cc in a build without MPI.
#include "core/error.h"
#include "harness/mpi_backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_mpi_backend(int, double) {
  throw Unsupported(
      "collective mpi: this program was built without MPI; install libopenmpi-dev and "
      "openmpi-bin and build again, or use --collective in_process");
}

}  // namespace mladcp
