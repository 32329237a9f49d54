// Cards, streams and operations of the ranks that this process runs on CUDA.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "harness/backend.h"
#include "harness/checked_indices.h"
#include "kernels/cuda_ops.h"

namespace mladcp {

class CudaRanks {
 public:
  // cards[i] is the card of rank first_rank + i; ranks may share one. Unsupported when a card is
  // missing or too old.
  explicit CudaRanks(const std::vector<int>& cards, int first_rank = 0);

  CudaDevice& device(int rank) { return *at(rank).device; }
  Stream stream(int rank) { return at(rank).stream; }
  // Indices are checked before a kernel follows them.
  Ops ops(int rank) { return at(rank).checked.ops(); }

  // Of the first card: a group's cards are alike.
  ScheduleParams schedule_params(const ScheduleShape& shape) const;
  const NumericsProfile& numerics(const ParallelConfig& config, std::int64_t q_len) const;
  static PrefillFormats prefill_formats();

 private:
  struct Rank {
    explicit Rank(CudaDevice& card)
        : device(&card), stream(card.create_stream()), ops(card), checked(ops.ops()) {}
    ~Rank() { device->destroy_stream(stream); }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    CudaDevice* device;
    Stream stream;
    CudaOps ops;
    CheckedIndexOps checked;
  };

  Rank& at(int rank) { return *ranks_.at(static_cast<std::size_t>(rank - first_rank_)); }

  int first_rank_;
  std::map<int, std::unique_ptr<CudaDevice>> devices_;  // by card
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace mladcp
