#include "collectives/rendezvous.h"

#include <algorithm>

#include "collectives/mismatch.h"
#include "core/error.h"

namespace mladcp {

Rendezvous::Rendezvous(int world_size, std::chrono::milliseconds timeout)
    : timeout_(timeout), seats_(static_cast<std::size_t>(world_size)) {}

void Rendezvous::join(int rank) {
  const std::lock_guard lock(mutex_);
  if (seats_[rank].joined) {
    throw InvalidArgument("rank " + std::to_string(rank) +
                          " of the group is taken; destroy its handle first");
  }
  seats_[rank] = {};
  seats_[rank].joined = true;
}

void Rendezvous::leave(int rank) {
  const std::lock_guard lock(mutex_);
  seats_[rank].joined = false;
  if (arrived_ > 0) fail_if_all_missing_ranks_left();
}

void Rendezvous::abort(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail(Kind::kAborted, "rank " + std::to_string(rank) + " failed: " + reason);
}

void Rendezvous::meet(int rank, const CollectiveCall& call) {
  std::unique_lock lock(mutex_);
  if (failure_) raise(*failure_, "the group is refused since: ");
  Seat& seat = seats_[rank];
  seat.call = call;
  seat.present = true;
  last_arrival_ = Clock::now();
  if (++arrived_ == static_cast<int>(seats_.size())) {
    conclude();
    return;
  }
  fail_if_all_missing_ranks_left();
  const std::uint64_t meeting = meeting_;
  while (meeting_ == meeting && !failure_) {
    // The clock starts anew with every arrival: it counts while all but the missing ranks wait.
    const Clock::time_point deadline = last_arrival_ + timeout_;
    if (Clock::now() >= deadline) {
      fail_for_lack_of_ranks();
    } else {
      changed_.wait_until(lock, deadline);
    }
  }
  if (meeting_ == meeting) raise(*failure_, "");
}

void Rendezvous::expect_usable() const {
  const std::lock_guard lock(mutex_);
  if (failure_) raise(*failure_, "the group is refused since: ");
}

void Rendezvous::conclude() {
  std::vector<CollectiveCall> calls;
  const bool equal = std::all_of(seats_.begin(), seats_.end(),
                                 [this](const Seat& seat) { return seat.call == seats_[0].call; });
  if (!equal) {
    for (const Seat& seat : seats_) calls.push_back(seat.call);
    fail(Kind::kMismatch, mismatch_message(calls));
    raise(*failure_, "");
  }
  for (Seat& seat : seats_) {
    seat.present = false;
    ++seat.meetings;
  }
  arrived_ = 0;
  ++meeting_;
  changed_.notify_all();
}

// Were the first who waits to fail alone, its message would depend on who that is.
void Rendezvous::fail_if_all_missing_ranks_left() {
  const std::vector<int> missing = missing_ranks();
  const bool all_left = std::none_of(missing.begin(), missing.end(),
                                     [this](int rank) { return seats_[rank].joined; });
  if (all_left) fail_for_lack_of_ranks();
}

void Rendezvous::fail_for_lack_of_ranks() {
  std::string lack;
  std::vector<int> late;
  for (const int rank : missing_ranks()) {
    if (seats_[rank].joined) {
      late.push_back(rank);
      continue;
    }
    // Two meetings a call: before the data moves and after.
    lack += (lack.empty() ? "" : ", ") + rank_list({rank}) + " left the group after " +
            std::to_string(seats_[rank].meetings / 2) + " calls";
  }
  const bool some_left = !lack.empty();
  if (!late.empty()) {
    lack += (some_left ? ", " : "") + rank_list(late) + " did not come within " +
            std::to_string(timeout_.count()) + " ms";
  }
  fail(some_left ? Kind::kAborted : Kind::kTimeout,
       lack + (some_left ? ", but " : "; ") + waiting());
}

void Rendezvous::fail(Kind kind, const std::string& message) {
  if (!failure_) failure_ = Failure{kind, message};
  changed_.notify_all();
}

void Rendezvous::raise(const Failure& failure, const char* prefix) {
  const std::string message = prefix + failure.message;
  switch (failure.kind) {
    case Kind::kMismatch:
      throw RankMismatch(message);
    case Kind::kTimeout:
      throw Timeout(message);
    case Kind::kAborted:
      break;
  }
  throw AbortedByPeer(message);
}

std::vector<int> Rendezvous::missing_ranks() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    if (!seats_[rank].present) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string Rendezvous::waiting() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    if (seats_[rank].present) ranks.push_back(static_cast<int>(rank));
  }
  std::string text;
  while (!ranks.empty()) {
    const CollectiveCall& call = seats_[ranks[0]].call;
    const auto others = std::stable_partition(ranks.begin(), ranks.end(),
                                              [&](int rank) { return seats_[rank].call == call; });
    const std::vector<int> together(ranks.begin(), others);
    text += (text.empty() ? "" : ", ") + rank_list(together) +
            (together.size() == 1 ? " waits in " : " wait in ") + describe(call);
    ranks.erase(ranks.begin(), others);
  }
  return text;
}

}  // namespace mladcp
