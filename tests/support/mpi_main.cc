// main() of tests that run as several processes: every process runs the same tests in the same
// order, process 0 prints, and what failed on the others comes to it over MPI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "core/error.h"
#include "tests/support/mpi_world_under_test.h"

namespace mladcp {
namespace {

MpiWorld* world_under_test = nullptr;

class FailureCollector final : public testing::EmptyTestEventListener {
 public:
  const std::string& failures() const { return failures_; }

 private:
  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    failures_ += test_ + ": " + result.message() + "\n";
  }

  std::string test_;
  std::string failures_;
};

int run_tests(MpiWorld& world) {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  auto* collector = new FailureCollector;  // the listeners own it
  listeners.Append(collector);
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  int status = RUN_ALL_TESTS();
  const std::vector<std::string> failures = world.gather_at_root(collector->failures());
  for (std::size_t process = 1; process < failures.size(); ++process) {
    if (failures[process].empty()) continue;
    std::cerr << "process " << process << ":\n" << failures[process];
    status = 1;
  }
  return status;
}

}  // namespace

MpiWorld& mpi_world_under_test() { return *world_under_test; }

}  // namespace mladcp

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  try {
    mladcp::MpiWorld world;
    mladcp::world_under_test = &world;
    try {
      return mladcp::run_tests(world);
    } catch (const mladcp::Error& error) {
      std::cerr << "process " << world.rank() << ": " << error.what() << "\n";
      world.abort_job(1);
    }
  } catch (const mladcp::Error& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
