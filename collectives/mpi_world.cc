#include "collectives/mpi_world.h"

#include <mpi.h>

#include <cstdlib>
#include <thread>

#include "collectives/mismatch.h"
#include "collectives/mpi_collective.h"
#include "core/error.h"

namespace mladcp {
namespace {

constexpr int kSizeTag = 0;
constexpr int kBytesTag = 1;
constexpr int kFirstGroupTag = 2;
constexpr std::chrono::seconds kFinalizeTimeout{5};

bool all_processes_are_here() {
  using Clock = std::chrono::steady_clock;
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  const Clock::time_point deadline = Clock::now() + kFinalizeTimeout;
  int flag = 0;
  while (MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag == 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
  return flag != 0;
}

// Notices and calls that nobody was there to hear any more.
void drop_unheard_messages() {
  std::vector<char> bytes;
  while (true) {
    int waiting = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &waiting, &status);
    if (waiting == 0) return;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    bytes.resize(static_cast<std::size_t>(count));
    MPI_Recv(bytes.data(), count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
  }
}

void wait_for_all(MpiTransfers& transfers, const char* what, std::chrono::milliseconds timeout) {
  if (transfers.wait(timeout, [] {})) return;
  throw Timeout(std::string("gathering ") + what + ": " + rank_list(transfers.missing_peers()) +
                " did not come within " + std::to_string(timeout.count()) + " ms");
}

// This process among all, and those it sends to and hears from.
struct Gathering {
  const char* what;
  int rank;
  std::vector<int> readers;
  std::vector<int> writers;
};

// The bytes of every process, where all are writers; else its own alone are there. The sizes come
// before the bytes: nobody waits for a long message to leave before the peer knows how long it is.
std::vector<std::string> gathered(const Gathering& way, int size, std::string_view mine,
                                  std::chrono::milliseconds timeout) {
  const auto own_size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(size));
  MpiTransfers lengths;
  for (const int peer : way.readers) lengths.send(&own_size, sizeof own_size, peer, kSizeTag);
  for (const int peer : way.writers) {
    lengths.receive(&sizes[peer], sizeof sizes[peer], peer, kSizeTag);
  }
  wait_for_all(lengths, way.what, timeout);
  std::vector<std::string> all(static_cast<std::size_t>(size));
  all[way.rank] = mine;
  MpiTransfers bytes;
  for (const int peer : way.readers) bytes.send(mine.data(), own_size, peer, kBytesTag);
  for (const int peer : way.writers) {
    all[peer].resize(static_cast<std::size_t>(sizes[peer]));
    bytes.receive(all[peer].data(), sizes[peer], peer, kBytesTag);
  }
  wait_for_all(bytes, way.what, timeout);
  return all;
}

std::vector<int> peers_of(int rank, int size) {
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) peers.push_back(peer);
  }
  return peers;
}

}  // namespace

struct MpiWorld::State {
  int rank = 0;
  int size = 1;
  int next_tag = kFirstGroupTag;
};

bool MpiWorld::launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

MpiWorld::MpiWorld() : state_(std::make_unique<State>()) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    throw MpiError("MPI has been started before; one MpiWorld a process, once");
  }
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &state_->size), "MPI_Comm_size");
}

MpiWorld::~MpiWorld() {
  // MPI_Finalize waits for the peers without end. Where one is gone, the launcher hears of it from
  // the exit of this process and ends the rest.
  if (!all_processes_are_here()) return;
  drop_unheard_messages();
  MPI_Finalize();
}

int MpiWorld::rank() const { return state_->rank; }
int MpiWorld::size() const { return state_->size; }

std::unique_ptr<Collective> MpiWorld::make_collective(const MpiOptions& options) {
  const int group_size = options.group_size == 0 ? size() : options.group_size;
  if (group_size < 0 || size() % group_size != 0) {
    throw InvalidArgument("group_size = " + std::to_string(options.group_size) +
                          ": must divide the " + std::to_string(size()) + " processes");
  }
  const MpiGroup group = {rank() % group_size, group_size, rank() / group_size * group_size,
                          state_->next_tag};
  state_->next_tag += MpiGroup::kTags;
  return std::make_unique<MpiCollective>(group, options.timeout);
}

std::vector<std::string> MpiWorld::gather_everywhere(std::string_view mine,
                                                     std::chrono::milliseconds timeout) const {
  const std::vector<int> peers = peers_of(rank(), size());
  return gathered({"what to run", rank(), peers, peers}, size(), mine, timeout);
}

std::vector<std::string> MpiWorld::gather_at_root(std::string_view mine,
                                                  std::chrono::milliseconds timeout) const {
  const bool root = rank() == 0;
  Gathering way{"reports", rank(), {}, {}};
  (root ? way.writers : way.readers) = root ? peers_of(0, size()) : std::vector<int>{0};
  std::vector<std::string> all = gathered(way, size(), mine, timeout);
  return root ? all : std::vector<std::string>{};
}

void MpiWorld::abort_job(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

}  // namespace mladcp
