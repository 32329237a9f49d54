// The MPI world of a test executable started by mpirun; tests/support/mpi_main.cc owns it.
#pragma once

#include "collectives/mpi_world.h"

namespace mladcp {

MpiWorld& mpi_world_under_test();

}  // namespace mladcp
