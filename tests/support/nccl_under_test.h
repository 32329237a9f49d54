// NCCL groups under test: rank r on card r, a thread a rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl_group.h"
#include "core/error.h"
#include "tests/support/collective_group.h"

namespace mladcp {

// Cards 0 .. count - 1 with one stream each. Unsupported where there are fewer.
class Cards {
 public:
  explicit Cards(int count);
  ~Cards();
  Cards(const Cards&) = delete;
  Cards& operator=(const Cards&) = delete;

  std::vector<CudaDevice*> devices() const;
  CudaDevice& device(int rank) const { return *devices_[rank]; }
  Stream stream(int rank) const { return streams_[rank]; }

 private:
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<Stream> streams_;
};

// Cards and the group that joins them: connecting takes a second, so one serves all tests.
struct JoinedCards {
  explicit JoinedCards(int count) : cards(count), group(cards.devices()) {}

  Cards cards;
  NcclGroup group;
};

class NcclUnderTest final : public GroupUnderTest {
 public:
  NcclUnderTest(JoinedCards& joined, bool validate) : joined_(joined), validate_(validate) {}

  int world_size() const override { return joined_.group.world_size(); }
  std::vector<std::string> run(const RankBody& body) override;

 private:
  JoinedCards& joined_;
  bool validate_;
};

// One case plain and one with a ValidatingCollective round every rank.
std::vector<GroupCase> nccl_cases(int world_size);

}  // namespace mladcp
