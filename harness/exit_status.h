// What the program's exit status says.
#pragma once

namespace mladcp {

enum ExitStatus : int {
  kExitPass = 0,         // all checks hold
  kExitCheckFailed = 1,  // a check failed
  kExitBadInput = 2,     // bad usage or input: nothing was run
  kExitCouldNotRun = 3,  // no device, no MPI, a CUDA, NCCL or MPI error, a group out of step; a
                         // report that cannot be written
};

}  // namespace mladcp
