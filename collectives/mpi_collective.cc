#include "collectives/mpi_collective.h"

#include <cstring>

#include "collectives/mismatch.h"
#include "core/error.h"

namespace mladcp {
namespace {

void expect_on_host(const CollectiveCall& call, const TensorView& view) {
  if (view.device != nullptr && view.device->kind() == DeviceKind::kHost) return;
  throw InvalidArgument(describe(call) + ": " + describe(view) +
                        " is not in host memory; MPI moves host tensors alone");
}

const char* block(const void* data, const DenseCall& dense, int rank) {
  return static_cast<const char*>(data) + rank * dense.block_bytes;
}
char* block(void* data, const DenseCall& dense, int rank) {
  return static_cast<char*>(data) + rank * dense.block_bytes;
}

}  // namespace

MpiCollective::MpiCollective(const MpiGroup& group, std::chrono::milliseconds timeout)
    : group_(group),
      timeout_(timeout),
      notices_(group.rank, group.world_size, group.first_process, group.first_tag + 2),
      axis_(host_device()),
      received_(host_device()),
      fingerprints_(static_cast<std::size_t>(group.world_size)) {}

MpiCollective::~MpiCollective() {
  try {
    notices_.tell(NoticeKind::kLeft, calls_, "");
  } catch (const Error&) {
    // The peers' timeouts have to do.
  }
}

void MpiCollective::run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                        Stream stream) {
  expect_on_host(call, out);
  expect_on_host(call, in);
  notices_.expect_no_failure("the group is refused since: ");
  try {
    compare(call);
    with_axis_in_front(axis_, call, world_size(), out, in, stream, [&](const DenseCall& dense) {
      if (call.op == CollectiveOp::kReduceScatter) {
        reduce(call, dense, stream);
      } else {
        exchange(call, dense);
      }
    });
  } catch (const RankMismatch& error) {
    notices_.tell(NoticeKind::kMismatch, calls_, error.what());
    throw;
  } catch (const Timeout& error) {
    notices_.tell(NoticeKind::kTimeout, calls_, error.what());
    throw;
  } catch (const std::exception& error) {
    notices_.tell(NoticeKind::kFailed, calls_,
                  "rank " + std::to_string(rank()) + " failed: " + error.what());
    throw;
  }
  ++calls_;
}

void MpiCollective::compare(const CollectiveCall& call) {
  MpiTransfers transfers;
  fingerprints_[rank()] = Fingerprint::of(call);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    transfers.receive(&fingerprints_[peer], sizeof(Fingerprint), process(peer), call_tag());
    transfers.send(&fingerprints_[rank()], sizeof(Fingerprint), process(peer), call_tag());
  }
  wait(transfers, call);
  const std::string message = mismatch_message(std::span<const Fingerprint>(fingerprints_));
  if (!message.empty()) throw RankMismatch(message);
}

void MpiCollective::exchange(const CollectiveCall& call, const DenseCall& dense) {
  const bool gathers = call.op == CollectiveOp::kAllGather;
  MpiTransfers transfers;
  for (int peer = 0; peer < world_size(); ++peer) {
    const void* source = gathers ? dense.in : block(dense.in, dense, peer);
    char* destination = block(dense.out, dense, peer);
    if (peer != rank()) {
      transfers.receive(destination, dense.block_bytes, process(peer), data_tag());
      transfers.send(source, dense.block_bytes, process(peer), data_tag());
    } else if (dense.block_bytes != 0) {
      std::memmove(destination, source, static_cast<std::size_t>(dense.block_bytes));
    }
  }
  wait(transfers, call);
}

void MpiCollective::reduce(const CollectiveCall& call, const DenseCall& dense, Stream stream) {
  void* received = received_.reserve(world_size() * dense.block_bytes, stream);
  MpiTransfers transfers;
  const TensorView sum = {dense.out,      call.dtype,
                          call.out_shape, contiguous_strides(call.out_shape),
                          &host_device(), "sum"};
  std::vector<TensorView> addends(static_cast<std::size_t>(world_size()), sum);
  for (int peer = 0; peer < world_size(); ++peer) {
    addends[peer].data = block(received, dense, peer);
    if (peer == rank()) {
      addends[peer].data = const_cast<char*>(block(dense.in, dense, peer));  // only read
      continue;
    }
    transfers.receive(addends[peer].data, dense.block_bytes, process(peer), data_tag());
    transfers.send(block(dense.in, dense, peer), dense.block_bytes, process(peer), data_tag());
  }
  wait(transfers, call);
  host_device().sum_in_rank_order(sum, addends, stream);
}

void MpiCollective::wait(MpiTransfers& transfers, const CollectiveCall& call) {
  const bool complete = transfers.wait(timeout_, [&] {
    notices_.expect_no_failure("");
    expect_present(transfers, call);
  });
  if (complete) return;
  std::vector<int> missing = transfers.missing_peers();
  for (int& peer : missing) peer -= group_.first_process;
  throw Timeout(rank_list(missing) + " did not come within " + std::to_string(timeout_.count()) +
                " ms; " + waiting(call));
}

// A rank that left with this call still open will never come.
void MpiCollective::expect_present(const MpiTransfers& transfers, const CollectiveCall& call) {
  for (const int missing : transfers.missing_peers()) {
    const int peer = missing - group_.first_process;
    const std::optional<std::int64_t> calls = notices_.calls_of_left(peer);
    if (!calls || *calls > calls_) continue;
    throw AbortedByPeer("rank " + std::to_string(peer) + " left the group after " +
                        std::to_string(*calls) + " calls, but " + waiting(call));
  }
}

std::string MpiCollective::waiting(const CollectiveCall& call) const {
  return "rank " + std::to_string(rank()) + " waits in " + describe(call);
}

}  // namespace mladcp
