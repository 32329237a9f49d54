#include "collectives/mpi_transfers.h"

#include <algorithm>
#include <string>
#include <thread>

#include "core/error.h"

namespace mladcp {
namespace {

// Polls without a pause at first; then it leaves the core to ranks that still compute on it.
constexpr std::chrono::microseconds kEagerPolling{200};
constexpr std::chrono::microseconds kPause{50};

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 30;  // MPI counts are int

template <typename Transfer>
void for_each_piece(std::int64_t bytes, const Transfer& transfer) {
  for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    transfer(begin, static_cast<int>(std::min(kPieceBytes, bytes - begin)));
  }
}

}  // namespace

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw MpiError(std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

MpiTransfers::~MpiTransfers() {
  for (Transfer& transfer : open_) {
    // A receive must not write to memory that its owner may free next. A send only reads.
    if (transfer.is_receive) {
      MPI_Cancel(&transfer.request);
    }
    MPI_Request_free(&transfer.request);
  }
}

void MpiTransfers::send(const void* data, std::int64_t bytes, int peer, int tag) {
  for_each_piece(bytes, [&](std::int64_t begin, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(static_cast<const char*>(data) + begin, count, MPI_BYTE, peer, tag,
                        MPI_COMM_WORLD, &request),
              "MPI_Isend");
    open_.push_back({request, peer, false});
  });
}

void MpiTransfers::receive(void* data, std::int64_t bytes, int peer, int tag) {
  for_each_piece(bytes, [&](std::int64_t begin, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(static_cast<char*>(data) + begin, count, MPI_BYTE, peer, tag,
                        MPI_COMM_WORLD, &request),
              "MPI_Irecv");
    open_.push_back({request, peer, true});
  });
}

bool MpiTransfers::wait(std::chrono::milliseconds timeout,
                        const std::function<void()>& between_polls) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (true) {
    const auto complete = [](Transfer& transfer) {
      int flag = 0;
      check_mpi(MPI_Test(&transfer.request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
      return flag != 0;
    };
    open_.erase(std::remove_if(open_.begin(), open_.end(), complete), open_.end());
    if (open_.empty()) return true;
    between_polls();
    const Clock::duration waited = Clock::now() - begin;
    if (waited >= timeout) return false;
    if (waited < kEagerPolling) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

std::vector<int> MpiTransfers::missing_peers() const {
  std::vector<int> peers;
  for (const bool receives : {true, false}) {
    for (const Transfer& transfer : open_) {
      if (transfer.is_receive == receives) peers.push_back(transfer.peer);
    }
    if (!peers.empty()) break;
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace mladcp
