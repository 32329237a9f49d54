#include <mutex>

#include "collectives/in_process_group.h"
#include "collectives/recording_collective.h"
#include "core/error.h"
#include "tests/collectives/conformance.h"

namespace mladcp {
namespace {

class InProcessUnderTest : public GroupUnderTest {
 public:
  explicit InProcessUnderTest(int world_size) : group_(world_size) {}

  int world_size() const override { return group_.world_size(); }

  std::vector<std::string> run(const RankBody& body) override {
    std::mutex mutex;
    std::vector<std::string> findings;
    group_.run([&](Collective& collective) {
      RankUnderTest rank{decorated(collective), host_device(), Stream{}};
      const std::string finding = body(rank);
      const std::lock_guard lock(mutex);
      findings.push_back(finding);
    });
    return findings;
  }

 private:
  virtual Collective& decorated(Collective& collective) { return collective; }

  InProcessGroup group_;
};

// A decorator must keep the contract of what it decorates.
class RecordedUnderTest final : public InProcessUnderTest {
 public:
  explicit RecordedUnderTest(int world_size)
      : InProcessUnderTest(world_size), decorators_(static_cast<std::size_t>(world_size)) {}

 private:
  Collective& decorated(Collective& collective) override {
    auto& decorator = decorators_[collective.rank()];
    decorator = std::make_unique<RecordingCollective>(collective, log_);
    return *decorator;
  }

  CallLog log_;
  std::vector<std::unique_ptr<RecordingCollective>> decorators_;
};

std::vector<GroupCase> cases() {
  std::vector<GroupCase> result;
  for (const int n : {1, 2, 3, 4, 8}) {
    result.push_back({"InProcess" + std::to_string(n),
                      [n] { return std::make_unique<InProcessUnderTest>(n); }});
  }
  result.push_back({"Recorded3", [] { return std::make_unique<RecordedUnderTest>(3); }});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectiveConformance, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace mladcp
