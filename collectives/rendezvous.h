// Where the threads of an in-process group meet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/collective.h"

namespace mladcp {

// Every rank brings the call it is in. The meeting happens when all are there and their calls, the
// sequence numbers included, are equal; otherwise it fails on all ranks at once with one message:
//   RankMismatch   calls differ
//   Timeout        a rank did not come although nobody else arrived for `timeout`
//   AbortedByPeer  ranks left, or never joined, and the others wait for them or came late; or a
//                  rank reported an error
// Only the first failure counts; from then on every meeting is refused with it. No message depends
// on who came first.
class Rendezvous {
 public:
  Rendezvous(int world_size, std::chrono::milliseconds timeout);

  // The rank takes part from now on. Resets what leave() noted.
  void join(int rank);
  // Whoever waits for this rank, now or later, fails once all who are left wait.
  void leave(int rank);
  // `rank` cannot go on: all meetings fail with `reason`.
  void abort(int rank, const std::string& reason);

  void meet(int rank, const CollectiveCall& call);

  // Throws the first failure, if there was one.
  void expect_usable() const;

 private:
  enum class Kind { kMismatch, kTimeout, kAborted };
  struct Failure {
    Kind kind;
    std::string message;
  };
  struct Seat {
    CollectiveCall call;
    bool joined = false;
    bool present = false;
    std::int64_t meetings = 0;
  };
  using Clock = std::chrono::steady_clock;

  [[noreturn]] static void raise(const Failure& failure, const char* prefix);
  void fail(Kind kind, const std::string& message);  // under the mutex
  void fail_if_all_missing_ranks_left();
  void fail_for_lack_of_ranks();
  void conclude();
  std::vector<int> missing_ranks() const;
  std::string waiting() const;  // "ranks 0, 2 wait in all_gather #3 ..."

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> seats_;
  int arrived_ = 0;
  std::uint64_t meeting_ = 0;
  Clock::time_point last_arrival_;
  std::optional<Failure> failure_;
};

}  // namespace mladcp
