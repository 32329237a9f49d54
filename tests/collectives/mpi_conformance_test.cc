#include "tests/collectives/conformance.h"
#include "tests/support/mpi_world_under_test.h"

namespace mladcp {
namespace {

class MpiUnderTest final : public GroupUnderTest {
 public:
  int world_size() const override { return collective_->world_size(); }

  std::vector<std::string> run(const RankBody& body) override {
    RankUnderTest rank{*collective_, host_device(), Stream{}};
    return {body(rank)};
  }

 private:
  std::unique_ptr<Collective> collective_ = mpi_world_under_test().make_collective();
};

INSTANTIATE_TEST_SUITE_P(Processes, CollectiveConformance,
                         testing::Values(GroupCase{
                             "Mpi", [] { return std::make_unique<MpiUnderTest>(); }}),
                         case_name);

}  // namespace
}  // namespace mladcp
