// Point-to-point transfers over MPI that are polled, never blocked in: the watchdog of
// MpiCollective.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace mladcp {

// Throws MpiError "MPI_Isend: ..." unless the status is MPI_SUCCESS.
void check_mpi(int status, const char* call);

// Nonblocking sends and receives of one phase of a call, with the peer each of them waits for. Of
// requests still open at destruction, receives are cancelled and sends let go.
class MpiTransfers {
 public:
  MpiTransfers() = default;
  ~MpiTransfers();
  MpiTransfers(const MpiTransfers&) = delete;
  MpiTransfers& operator=(const MpiTransfers&) = delete;

  // Memory stays valid until the transfer is complete or given up. Any size: long ones are cut.
  void send(const void* data, std::int64_t bytes, int peer, int tag);
  void receive(void* data, std::int64_t bytes, int peer, int tag);

  // Polls until everything is complete; false when `timeout` has passed. between_polls may throw.
  bool wait(std::chrono::milliseconds timeout, const std::function<void()>& between_polls);

  // Peers with an incomplete receive, or with an incomplete transfer when no receive is.
  std::vector<int> missing_peers() const;

 private:
  struct Transfer {
    MPI_Request request;
    int peer;
    bool is_receive;
  };

  std::vector<Transfer> open_;
};

}  // namespace mladcp
