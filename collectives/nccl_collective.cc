#include "collectives/nccl_collective.h"

#include <nccl.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "collectives/axis_in_front.h"
#include "collectives/nccl_watchdog.h"
#include "core/error.h"
#include "core/forwarding_device.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(sizeof(NcclId::bytes) == sizeof(ncclUniqueId));

ncclDataType_t sum_type(DType dtype) {
  return dtype == DType::kF32 ? ncclFloat32 : ncclBfloat16;  // Collective lets no other pass
}

// NCCL tells that a call does not complete, not for whom it waits.
std::string peers_of(int rank, int world_size) {
  return world_size == 2 ? "rank " + std::to_string(1 - rank) : "a peer";
}

}  // namespace

NcclId make_nccl_id() {
  ncclUniqueId unique = {};
  const ncclResult_t result = ncclGetUniqueId(&unique);
  if (result != ncclSuccess) {
    throw NcclError(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result) + "; " +
                    ncclGetLastError(nullptr));
  }
  NcclId id;
  std::memcpy(id.bytes.data(), &unique, sizeof unique);
  return id;
}

// The communicator is non-blocking: every NCCL call returns at once, possibly "in progress", and is
// polled. The mutex orders the rank's thread with the watchdog's, which may abort.
class NcclCollective::Communicator {
 public:
  Communicator(const NcclId& id, int rank, int world_size, CudaDevice& device,
               const NcclOptions& options)
      : rank_(rank),
        world_size_(world_size),
        device_(device),
        timeout_(options.timeout),
        axis_(device),
        watchdog_(device, options.timeout, peers_of(rank, world_size),
                  {[this] { return asynchronous_error(); }, [this] { abort(); }}) {
    if (world_size < 1 || rank < 0 || rank >= world_size) {
      throw InvalidArgument("rank = " + std::to_string(rank) + ": must be in [0, " +
                            std::to_string(world_size) + "), the world size");
    }
    connect(id);
  }

  ~Communicator() {
    const DeviceGuard guard(device_.index());
    // Whatever is in flight completes, or the watchdog ends it.
    if (!watchdog_.failed() && finalized()) {
      const std::lock_guard lock(mutex_);
      if (comm_ != nullptr) ncclCommDestroy(comm_);
      comm_ = nullptr;
    }
    abort();
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  NcclWatchdog& watchdog() { return watchdog_; }

  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in, Stream stream) {
    watchdog_.expect_no_failure("the group is refused since: ");
    expect_on_device(call, out);
    expect_on_device(call, in);
    if (in.elements() == 0) return;  // nothing moves, on any rank
    const DeviceGuard guard(device_.index());
    with_axis_in_front(axis_, call, world_size_, out, in, stream,
                       [&](const DenseCall& dense) { enqueue(call, dense, cuda_stream(stream)); });
    watchdog_.watch(stream, call, rank_);
  }

  void synchronize(Stream stream) {
    const DeviceGuard guard(device_.index());
    watchdog_.watch(stream, "the stream of rank " + std::to_string(rank_));
    device_.synchronize(stream);
    watchdog_.expect_no_failure("");
  }

 private:
  void connect(const NcclId& id) {
    const DeviceGuard guard(device_.index());
    ncclUniqueId unique = {};
    std::memcpy(&unique, id.bytes.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::string what =
        "connecting rank " + std::to_string(rank_) + " of " + std::to_string(world_size_);
    finish(ncclCommInitRankConfig(&comm_, world_size_, unique, rank_, &config), what);
  }

  // Polls until the call just made is complete on the host side.
  void finish(ncclResult_t result, const std::string& what) {
    const Clock::time_point deadline = Clock::now() + timeout_;
    while (result == ncclInProgress) {
      watchdog_.expect_no_failure("");
      {
        const std::lock_guard lock(mutex_);
        if (comm_ == nullptr) continue;  // aborted: the failure is about to be known
        const ncclResult_t query = ncclCommGetAsyncError(comm_, &result);
        if (query != ncclSuccess) result = query;
      }
      if (result == ncclInProgress && Clock::now() >= deadline) {
        watchdog_.fail_late(what);
        watchdog_.expect_no_failure("");
      }
      if (result == ncclInProgress) std::this_thread::yield();
    }
    if (result == ncclSuccess) return;
    watchdog_.fail(NcclWatchdog::Kind::kNccl,
                   what + ": " + ncclGetErrorString(result) + "; " + ncclGetLastError(nullptr));
    watchdog_.expect_no_failure("");
  }

  void enqueue(const CollectiveCall& call, const DenseCall& dense, cudaStream_t stream) {
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (comm_ != nullptr) result = start(call, dense, stream);
    }
    if (result != ncclSuccess) {
      finish(result, describe(call) + " on rank " + std::to_string(rank_));
    }
    watchdog_.expect_no_failure("");
  }

  ncclResult_t start(const CollectiveCall& call, const DenseCall& dense, cudaStream_t stream) {
    const auto bytes = static_cast<std::size_t>(dense.block_bytes);
    switch (call.op) {
      case CollectiveOp::kAllGather:
        return ncclAllGather(dense.in, dense.out, bytes, ncclUint8, comm_, stream);
      case CollectiveOp::kReduceScatter:
        return ncclReduceScatter(dense.in, dense.out, bytes / size_bytes(call.dtype),
                                 sum_type(call.dtype), ncclSum, comm_, stream);
      case CollectiveOp::kAllToAll:
        break;
    }
    ncclResult_t first_error = ncclGroupStart();
    const auto note = [&first_error](ncclResult_t result) {
      const bool fine = result == ncclSuccess || result == ncclInProgress;
      if (!fine && first_error == ncclSuccess) first_error = result;
    };
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::size_t offset = bytes * static_cast<std::size_t>(peer);
      note(ncclSend(static_cast<const char*>(dense.in) + offset, bytes, ncclUint8, peer, comm_,
                    stream));
      note(ncclRecv(static_cast<char*>(dense.out) + offset, bytes, ncclUint8, peer, comm_, stream));
    }
    const ncclResult_t end = ncclGroupEnd();
    return first_error == ncclSuccess ? end : first_error;
  }

  std::string asynchronous_error() {
    const std::lock_guard lock(mutex_);
    ncclResult_t result = ncclSuccess;
    if (comm_ == nullptr || ncclCommGetAsyncError(comm_, &result) != ncclSuccess) return {};
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return std::string(ncclGetErrorString(result)) + "; " + ncclGetLastError(comm_);
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  bool finalized() {
    try {
      ncclResult_t result = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        if (comm_ == nullptr) return false;
        result = ncclCommFinalize(comm_);
      }
      finish(result, "leaving the group on rank " + std::to_string(rank_));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void expect_on_device(const CollectiveCall& call, const TensorView& view) const {
    if (on_device(view, device_)) return;
    throw InvalidArgument(describe(call) + " on rank " + std::to_string(rank_) + ": " +
                          describe(view) + " is not on this rank's device, " +
                          std::string(device_.description()));
  }

  const int rank_;
  const int world_size_;
  CudaDevice& device_;
  const std::chrono::milliseconds timeout_;
  AxisInFront axis_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  NcclWatchdog watchdog_;  // last: its thread uses the others
};

NcclCollective::NcclCollective(const NcclId& id, int rank, int world_size, CudaDevice& device,
                               const NcclOptions& options)
    : communicator_(std::make_unique<Communicator>(id, rank, world_size, device, options)) {}

NcclCollective::~NcclCollective() = default;

int NcclCollective::rank() const { return communicator_->rank(); }
int NcclCollective::world_size() const { return communicator_->world_size(); }

void NcclCollective::synchronize(Stream stream) { communicator_->synchronize(stream); }

void NcclCollective::abort(const std::string& reason) {
  communicator_->watchdog().fail(NcclWatchdog::Kind::kAborted, reason);
}

void NcclCollective::run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                         Stream stream) {
  communicator_->run(call, out, in, stream);
}

}  // namespace mladcp
