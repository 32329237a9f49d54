#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "collectives/in_process_group.h"
#include "collectives/recording_collective.h"
#include "collectives/validating_collective.h"
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
template <typename Decorator>
class DecoratedUnderTest final : public InProcessUnderTest {
 public:
  using Make = std::function<std::unique_ptr<Decorator>(Collective&)>;

  DecoratedUnderTest(int world_size, Make make)
      : InProcessUnderTest(world_size),
        make_(std::move(make)),
        decorators_(static_cast<std::size_t>(world_size)) {}

 private:
  Collective& decorated(Collective& collective) override {
    auto& decorator = decorators_[collective.rank()];
    decorator = make_(collective);
    return *decorator;
  }

  Make make_;
  std::vector<std::unique_ptr<Decorator>> decorators_;
};

std::unique_ptr<GroupUnderTest> recorded_group(int world_size) {
  return std::make_unique<DecoratedUnderTest<RecordingCollective>>(
      world_size, [log = std::make_shared<CallLog>()](Collective& inner) {
        return std::make_unique<RecordingCollective>(inner, *log);
      });
}

std::unique_ptr<GroupUnderTest> validated_group(int world_size) {
  return std::make_unique<DecoratedUnderTest<ValidatingCollective>>(
      world_size, [](Collective& inner) {
        return std::make_unique<ValidatingCollective>(inner, host_device());
      });
}

std::vector<GroupCase> cases() {
  std::vector<GroupCase> result;
  for (const int n : {1, 2, 3, 4, 8}) {
    result.push_back(
        {"InProcess" + std::to_string(n), [n] { return std::make_unique<InProcessUnderTest>(n); }});
  }
  result.push_back({"Recorded3", [] { return recorded_group(3); }});
  result.push_back({"Validated3", [] { return validated_group(3); }});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectiveConformance, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace mladcp
