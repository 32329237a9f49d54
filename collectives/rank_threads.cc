#include "collectives/rank_threads.h"

#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

Error no_thread(int rank, int world_size, const std::system_error& error) {
  return Error("rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
               " got no thread: " + error.code().message() +
               "; use fewer ranks (tp, dcp), or allow more threads and memory (ulimit -u, -v)");
}

}  // namespace

void run_ranks(int world_size, const std::function<void(int)>& body,
               const std::function<void(int, const std::string&)>& abort) {
  std::mutex mutex;
  std::exception_ptr first_error;    // of a rank that failed by itself
  std::exception_ptr first_aborted;  // of a rank that a peer took down
  const auto keep = [&mutex](std::exception_ptr& kept) {
    const std::lock_guard lock(mutex);
    if (!kept) kept = std::current_exception();
  };
  const auto fail = [&](int rank, const Error& error) {
    {
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::make_exception_ptr(error);
    }
    abort(rank, error.what());
  };
  const auto run_rank = [&](int rank) {
    try {
      body(rank);
    } catch (const AbortedByPeer& error) {
      keep(first_aborted);
      abort(rank, error.what());
    } catch (const std::exception& error) {
      keep(first_error);
      abort(rank, error.what());
    } catch (...) {
      keep(first_error);
      abort(rank, "an exception of unknown type");
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      try {
        threads.emplace_back(run_rank, rank);
      } catch (const std::system_error& error) {
        fail(rank, no_thread(rank, world_size, error));
        break;
      }
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  if (first_aborted) std::rethrow_exception(first_aborted);
}

}  // namespace mladcp
