// This process among those that mpirun (or srun) started.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/collective.h"

namespace mladcp {

struct MpiOptions {
  // Consecutive processes form one group, numbered from 0 inside; 0: all processes are one group.
  int group_size = 0;
  // How long to wait for a peer in one call.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// One per process, on the thread that makes every MPI call: initialises MPI and finalises it.
// Errors of MPI come back as MpiError, nothing aborts by itself.
class MpiWorld {
 public:
  // True when a launcher of MPI processes started this one.
  static bool launched();

  MpiWorld();   // MpiError when MPI cannot start or has been started before
  ~MpiWorld();  // waits a few seconds for the peers; without them MPI stays unfinalised
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const;
  int size() const;

  // This process' handle on its group. Host tensors only; a call compares the ranks' calls before
  // data moves, and is complete on return. Every process makes its handles in the same order; the
  // world outlives them. InvalidArgument when group_size does not divide size().
  // Errors of calls, on every rank of the group: RankMismatch, Timeout, AbortedByPeer, MpiError.
  std::unique_ptr<Collective> make_collective(const MpiOptions& options = {});

  // Every process gets the bytes of every process in rank order. Timeout names the processes that
  // did not come.
  std::vector<std::string> gather_everywhere(
      std::string_view mine, std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;

  // Process 0 gets the bytes of every process in rank order, the others an empty list. For reports.
  // Timeout names the processes that did not come.
  std::vector<std::string> gather_at_root(
      std::string_view mine, std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;

  // Ends all processes of the job, with `status` as theirs. For a main() that cannot go on; the
  // library never calls it.
  void abort_job(int status);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mladcp
