// What a rank tells its peers outside of any call: that it has left, or cannot go on.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mladcp {

enum class NoticeKind : std::int32_t { kLeft, kMismatch, kTimeout, kFailed };

// Small enough for MPI to deliver without the receiver's help.
struct Notice {
  NoticeKind kind = NoticeKind::kLeft;
  std::int32_t rank = 0;
  std::int64_t calls = 0;   // complete calls of a rank that left
  char message[1536] = {};  // cut when longer
};

class MpiNotices {
 public:
  // The group is world_size processes from first_process on; `tag` is theirs alone.
  MpiNotices(int rank, int world_size, int first_process, int tag);
  ~MpiNotices();
  MpiNotices(const MpiNotices&) = delete;
  MpiNotices& operator=(const MpiNotices&) = delete;

  // Tells every peer, without waiting for them to listen. The first failure told or heard is the
  // group's; later ones are not told any more.
  void tell(NoticeKind kind, std::int64_t calls, const std::string& message);

  // Hears what has arrived; throws the group's failure, if there is one, with `prefix` before it.
  void expect_no_failure(const char* prefix);

  // Calls that `rank` had completed when it left; nothing while it is there.
  std::optional<std::int64_t> calls_of_left(int rank) const { return left_[rank]; }

 private:
  void listen();
  void hear();

  const int rank_;
  const int first_process_;
  const int tag_;
  std::vector<std::optional<std::int64_t>> left_;
  std::optional<Notice> failure_;
  Notice incoming_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace mladcp
