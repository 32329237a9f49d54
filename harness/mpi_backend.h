// The backend of one rank a process, started by mpirun or srun: host memory, MPI between them.
#pragma once

#include <memory>

#include "harness/backend.h"

namespace mladcp {

// For groups of `ranks`, as many as there are processes: run_scenario holds them to it. Unsupported
// in a build without MPI, MpiError when MPI cannot start. One per process, ever.
std::unique_ptr<Backend> make_mpi_backend(int ranks, double timeout_s);

}  // namespace mladcp
