#include "collectives/mpi_notices.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "collectives/mpi_transfers.h"
#include "core/error.h"

namespace mladcp {
namespace {

[[noreturn]] void raise(const Notice& failure, const char* prefix) {
  const std::string message = std::string(prefix) + failure.message;
  switch (failure.kind) {
    case NoticeKind::kMismatch:
      throw RankMismatch(message);
    case NoticeKind::kTimeout:
      throw Timeout(message);
    default:
      throw AbortedByPeer(message);
  }
}

}  // namespace

MpiNotices::MpiNotices(int rank, int world_size, int first_process, int tag)
    : rank_(rank),
      first_process_(first_process),
      tag_(tag),
      left_(static_cast<std::size_t>(world_size)) {
  listen();
}

MpiNotices::~MpiNotices() {
  MPI_Cancel(&request_);
  MPI_Wait(&request_, MPI_STATUS_IGNORE);
}

void MpiNotices::listen() {
  check_mpi(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, tag_, MPI_COMM_WORLD,
                      &request_),
            "MPI_Irecv");
}

void MpiNotices::hear() {
  while (true) {
    int arrived = 0;
    check_mpi(MPI_Test(&request_, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
    if (arrived == 0) return;
    if (incoming_.kind == NoticeKind::kLeft) {
      left_.at(static_cast<std::size_t>(incoming_.rank)) = incoming_.calls;
    } else if (!failure_) {
      failure_ = incoming_;
    }
    listen();
  }
}

void MpiNotices::expect_no_failure(const char* prefix) {
  hear();
  if (failure_) raise(*failure_, prefix);
}

void MpiNotices::tell(NoticeKind kind, std::int64_t calls, const std::string& message) {
  if (failure_) return;
  auto notice = std::make_unique<Notice>();
  notice->kind = kind;
  notice->rank = rank_;
  notice->calls = calls;
  message.copy(notice->message, sizeof notice->message - 1);
  if (kind != NoticeKind::kLeft) failure_ = *notice;
  MpiTransfers sends;
  for (int peer = 0; peer < static_cast<int>(left_.size()); ++peer) {
    if (peer != rank_) sends.send(notice.get(), sizeof(Notice), first_process_ + peer, tag_);
  }
  // MPI takes so small a message over at once. Should it not, it may read the notice later.
  if (!sends.wait(std::chrono::milliseconds(100), [] {})) static_cast<void>(notice.release());
}

}  // namespace mladcp
