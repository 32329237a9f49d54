// Which rank of a job this process is, by the variables of whatever started it.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mladcp {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the processes of this host: which GPU to take
  std::string root_address;  // host of rank 0
  int root_port = 0;
  std::string source;  // "RANK, WORLD_SIZE, ..." for messages
};

// Value of an environment variable, or null.
using Lookup = std::function<const char*(const char*)>;

// The first of these whose rank and size variables are set; nothing when none is:
//   torchrun-style  RANK, WORLD_SIZE, LOCAL_RANK
//   Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
//   Slurm (srun)    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID
// The address is MASTER_ADDR; without it, this host when all processes are local, or Slurm's first
// node. The port is MASTER_PORT, or 29500; one more under torchrun, whose own store listens there.
// InvalidArgument names the variable, its value and the remedy.
std::optional<LaunchEnvironment> launch_environment(const Lookup& lookup);

struct LaunchedProcess {
  int rank = 0;
  int world_size = 1;
};

// This process among those of its job, by the same variables; 0 of 1 where they say nothing or
// nonsense. Never throws: for who complains, perhaps of these very variables.
LaunchedProcess launched_process(const Lookup& lookup);

}  // namespace mladcp
