// Not a test by itself: process 1 dies in the middle of a step, as by the kernel's OOM killer.
// mpi_killed_rank.cmake judges what mpirun makes of it.
#include <csignal>
#include <iostream>

#include "collectives/mpi_world.h"
#include "core/error.h"

int main() {
  using namespace mladcp;  // NOLINT(google-build-using-namespace): one function
  MpiWorld world;
  try {
    const auto collective = world.make_collective({0, std::chrono::seconds(10)});
    const Tensor in(host_device(), DType::kBytes, {1}, "in");
    const Tensor out(host_device(), DType::kBytes, {world.size()}, "out");
    host_device().fill_bytes(in.view().data, 0, 1, Stream{});
    for (int call = 0; call < 3; ++call) {
      if (call == 2 && world.rank() == 1) raise(SIGKILL);
      collective->all_gather(out, in, 0, Stream{}, "query");
    }
    std::cerr << "process " << world.rank() << " noticed nothing\n";
  } catch (const Error& error) {
    std::cerr << "process " << world.rank() << ": " << error.what() << "\n";
    world.abort_job(3);
  }
  return 0;
}
