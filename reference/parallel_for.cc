#include "reference/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace mladcp {
namespace {

// What the threads of one parallel_for share.
class Work {
 public:
  Work(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t)>& body)
      : count_(count), grain_(grain), body_(body) {}

  void take_until_done() noexcept {
    try {
      for (;;) {
        const std::int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (begin >= count_) return;
        const std::int64_t end = std::min(begin + grain_, count_);
        for (std::int64_t i = begin; i < end; ++i) body_(i);
      }
    } catch (...) {
      keep(std::current_exception());
    }
  }

  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void keep(std::exception_ptr failure) noexcept {
    next_.store(count_, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  const std::int64_t count_;
  const std::int64_t grain_;
  const std::function<void(std::int64_t)>& body_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

int threads_per_rank(int ranks) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks));
}

void parallel_for(int threads, std::int64_t count, const std::function<void(std::int64_t)>& body,
                  std::int64_t grain) {
  grain = std::max<std::int64_t>(1, grain);
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t helpers = std::min<std::int64_t>(threads, grains) - 1;
  if (helpers <= 0) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Work work(count, grain, body);
  std::vector<std::thread> team;
  team.reserve(static_cast<std::size_t>(helpers));
  try {
    for (std::int64_t t = 0; t < helpers; ++t)
      team.emplace_back([&work] { work.take_until_done(); });
  } catch (const std::system_error&) {
    // The system gave fewer threads; the work is done by those there are.
  }
  work.take_until_done();
  for (std::thread& thread : team) thread.join();
  work.rethrow_failure();
}

}  // namespace mladcp
