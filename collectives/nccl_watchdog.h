// Watches what was enqueued on a communicator, so that a peer that never comes cannot hang a
// stream.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/collective.h"
#include "core/owned_handles.h"
#include "kernels/device/cuda_device.h"

namespace mladcp {

// Polls from a thread of its own. The first failure, found or reported, calls `on_failure` once, on
// the thread that found it.
class NcclWatchdog {
 public:
  enum class Kind { kTimeout, kNccl, kAborted };

  struct Hooks {
    std::function<std::string()> asynchronous_error;  // empty: none
    std::function<void()> on_failure;                 // aborts the communicator
  };

  // `suspect`: who is to blame for a call that does not complete ("rank 1", "a peer").
  NcclWatchdog(CudaDevice& device, std::chrono::milliseconds timeout, std::string suspect,
               Hooks hooks);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // Everything enqueued on `stream` so far must complete within the timeout; `what` names it.
  // A stream that is being captured is left alone.
  void watch(Stream stream, const std::string& what);
  void watch(Stream stream, const CollectiveCall& call, int rank);

  // The group cannot go on.
  void fail(Kind kind, const std::string& message);

  // `what` has taken longer than the timeout.
  void fail_late(const std::string& what);

  // Throws the failure, if there is one; `prefix` before it.
  void expect_no_failure(const char* prefix) const;
  bool failed() const;

 private:
  struct Watched {
    Event event;
    std::chrono::steady_clock::time_point begin;
    CollectiveCall call;
    std::string what;  // empty: the call
    int rank;
  };
  struct Failure {
    Kind kind;
    std::string message;
  };

  void watch(Stream stream, const CollectiveCall& call, int rank, const std::string& what);
  void poll();
  void retire_completed();  // under the mutex
  static std::string name_of(const Watched& watched);

  CudaDevice& device_;
  const std::chrono::milliseconds timeout_;
  const std::string suspect_;
  const Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<OwnedEvent> events_;  // all of them
  std::vector<Event> free_events_;
  std::deque<Watched> watched_;  // oldest first
  std::optional<Failure> failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mladcp
