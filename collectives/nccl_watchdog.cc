#include "collectives/nccl_watchdog.h"

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};
constexpr std::size_t kEvents = 256;  // beyond so many calls in flight the newest go unwatched

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(cuda_stream(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclWatchdog::NcclWatchdog(CudaDevice& device, std::chrono::milliseconds timeout,
                           std::string suspect, Hooks hooks)
    : device_(device), timeout_(timeout), suspect_(std::move(suspect)), hooks_(std::move(hooks)) {
  for (std::size_t i = 0; i < kEvents; ++i) events_.emplace_back(device_);
  free_events_.assign(events_.begin(), events_.end());
  thread_ = std::thread([this] { poll(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::watch(Stream stream, const std::string& what) { watch(stream, {}, 0, what); }

void NcclWatchdog::watch(Stream stream, const CollectiveCall& call, int rank) {
  watch(stream, call, rank, "");
}

void NcclWatchdog::watch(Stream stream, const CollectiveCall& call, int rank,
                         const std::string& what) {
  if (is_capturing(stream)) return;
  const std::lock_guard lock(mutex_);
  if (free_events_.empty()) retire_completed();
  if (free_events_.empty()) return;
  const Event event = free_events_.back();
  free_events_.pop_back();
  device_.record(event, stream);
  watched_.push_back({event, std::chrono::steady_clock::now(), call, what, rank});
  if (watched_.size() == 1) changed_.notify_all();
}

void NcclWatchdog::fail(Kind kind, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = Failure{kind, message};
  }
  hooks_.on_failure();
}

void NcclWatchdog::fail_late(const std::string& what) {
  fail(Kind::kTimeout, what + " did not complete within " + std::to_string(timeout_.count()) +
                           " ms: " + suspect_ + " is missing, dead, or in another collective");
}

void NcclWatchdog::expect_no_failure(const char* prefix) const {
  const std::lock_guard lock(mutex_);
  if (!failure_) return;
  const std::string message = prefix + failure_->message;
  switch (failure_->kind) {
    case Kind::kTimeout:
      throw Timeout(message);
    case Kind::kNccl:
      throw NcclError(message);
    case Kind::kAborted:
      break;
  }
  throw AbortedByPeer(message);
}

bool NcclWatchdog::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void NcclWatchdog::retire_completed() {
  while (!watched_.empty()) {
    const auto event = static_cast<cudaEvent_t>(watched_.front().event.handle);
    if (cudaEventQuery(event) == cudaErrorNotReady) return;
    free_events_.push_back(watched_.front().event);
    watched_.pop_front();
  }
}

std::string NcclWatchdog::name_of(const Watched& watched) {
  if (!watched.what.empty()) return watched.what;
  return describe(watched.call) + " on rank " + std::to_string(watched.rank);
}

void NcclWatchdog::poll() {
  const DeviceGuard guard(device_.index());
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (watched_.empty() || failure_) {
      changed_.wait(lock, [this] { return stopping_ || (!watched_.empty() && !failure_); });
      continue;
    }
    changed_.wait_for(lock, kPollInterval, [this] { return stopping_; });
    retire_completed();
    if (stopping_ || watched_.empty() || failure_) continue;
    std::string oldest = name_of(watched_.front());
    const bool late = std::chrono::steady_clock::now() - watched_.front().begin >= timeout_;
    lock.unlock();
    const std::string error = hooks_.asynchronous_error();
    if (!error.empty()) {
      fail(Kind::kNccl, oldest.append(": ").append(error));
    } else if (late) {
      fail_late(oldest);
    }
    lock.lock();
  }
}

}  // namespace mladcp
