#include "tests/support/nccl_under_test.h"

#include <cstdlib>
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

NcclUnderTest::NcclUnderTest(int world_size, bool validate)
    : cards_(world_size), group_(cards_.devices()), validate_(validate) {}

std::vector<std::string> NcclUnderTest::run(const RankBody& body) {
  std::mutex mutex;
  std::vector<std::string> findings;
  group_.run([&](Collective& collective) {
    const int r = collective.rank();
    ValidatingCollective validating(collective, cards_.device(r));
    Collective& tested = validate_ ? static_cast<Collective&>(validating) : collective;
    RankUnderTest rank{tested, cards_.device(r), cards_.stream(r)};
    const std::string finding = body(rank);
    rank.collective.synchronize(rank.stream);
    const std::lock_guard lock(mutex);
    findings.push_back(finding);
  });
  return findings;
}

std::vector<GroupCase> nccl_cases(int world_size) {
  std::vector<GroupCase> cases;
  for (const bool validate : {false, true}) {
    GroupCase group_case;
    group_case.name = (validate ? "NcclValidated" : "Nccl") + std::to_string(world_size);
    group_case.make = [=] { return std::make_unique<NcclUnderTest>(world_size, validate); };
    group_case.compares_calls = validate;
    group_case.sums_in_rank_order = world_size <= 2;  // two addends have no order
    cases.push_back(group_case);
  }
  return cases;
}

}  // namespace mladcp
