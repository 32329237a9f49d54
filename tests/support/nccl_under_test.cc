#include "tests/support/nccl_under_test.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include "collectives/validating_collective.h"

namespace mladcp {

Cards::Cards(int count) {
  // NVLink multicast can take the GPUs of a shared host down with it: off, whatever the caller's.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  for (int index = 0; index < count; ++index) {
    devices_.push_back(std::make_unique<CudaDevice>(index));
    streams_.push_back(devices_.back()->create_stream());
  }
}

Cards::~Cards() {
  for (std::size_t i = 0; i < streams_.size(); ++i) devices_[i]->destroy_stream(streams_[i]);
}

std::vector<CudaDevice*> Cards::devices() const {
  std::vector<CudaDevice*> result;
  for (const auto& device : devices_) result.push_back(device.get());
  return result;
}

std::vector<std::string> NcclUnderTest::run(const RankBody& body) {
  std::mutex mutex;
  std::vector<std::string> findings;
  joined_.group.run([&](Collective& collective) {
    const int r = collective.rank();
    ValidatingCollective validating(collective, joined_.cards.device(r));
    Collective& tested = validate_ ? static_cast<Collective&>(validating) : collective;
    RankUnderTest rank{tested, joined_.cards.device(r), joined_.cards.stream(r)};
    const std::string finding = body(rank);
    rank.collective.synchronize(rank.stream);
    const std::lock_guard lock(mutex);
    findings.push_back(finding);
  });
  return findings;
}

namespace {

JoinedCards& joined_cards(int count) {
  static auto& groups = *new std::map<int, std::unique_ptr<JoinedCards>>;
  std::unique_ptr<JoinedCards>& group = groups[count];
  if (group == nullptr) group = std::make_unique<JoinedCards>(count);
  return *group;
}

}  // namespace

std::vector<GroupCase> nccl_cases(int world_size) {
  std::vector<GroupCase> cases;
  for (const bool validate : {false, true}) {
    GroupCase group_case;
    group_case.name = (validate ? "NcclValidated" : "Nccl") + std::to_string(world_size);
    group_case.make = [=] {
      return std::make_unique<NcclUnderTest>(joined_cards(world_size), validate);
    };
    group_case.compares_calls = validate;
    group_case.sums_in_rank_order = world_size <= 2;  // two addends have no order
    cases.push_back(group_case);
  }
  return cases;
}

}  // namespace mladcp
