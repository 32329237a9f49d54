// N ranks as threads of one process, with real data, on host memory or on one device.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/collective.h"

namespace mladcp {

struct InProcessOptions {
  // How long to wait for a missing rank while all others are there.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// A call meets twice on the host: once every rank has published its input, and again once every
// rank has read what it needs. On a device the same two meetings order streams through events
// (publish a ready event, wait for the peers'; record a done event, wait for the readers'), so
// nothing spins there and N ranks on one card cannot deadlock. Sums run in rank order, in fp32,
// each element once: bitwise repeatable. `out` and `in` of a call must not overlap. A call
// allocates no device memory and synchronises no device; it may be captured into a graph with the
// rank streams forked from one origin stream.
//
// Errors, on every rank (collectives/rendezvous.h): RankMismatch, Timeout, AbortedByPeer. After the
// first one the group stays refused.
class InProcessGroup {
 public:
  // `device` holds the tensors of all ranks and outlives the group and its handles.
  explicit InProcessGroup(int world_size, InProcessOptions options = {},
                          Device& device = host_device());
  ~InProcessGroup();
  InProcessGroup(const InProcessGroup&) = delete;
  InProcessGroup& operator=(const InProcessGroup&) = delete;

  int world_size() const;

  // The handle of `rank`, for one thread at a time; it may outlive the group. To destroy it is to
  // leave: whoever waits for the rank gets AbortedByPeer.
  std::unique_ptr<Collective> join(int rank);

  // Runs body once a rank, each on its own thread, and waits for all. An exception on one rank
  // aborts the others; here the first one that is not AbortedByPeer is thrown on.
  void run(const std::function<void(Collective&)>& body);

  // For callers with threads of their own: `rank` cannot go on.
  void abort(int rank, const std::string& reason);

 private:
  struct State;
  std::shared_ptr<State> state_;

  class Handle;
};

}  // namespace mladcp
