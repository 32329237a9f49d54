// The contract of core/collective.h as one suite, run on every implementation:
//   INSTANTIATE_TEST_SUITE_P(InProcess, CollectiveConformance, testing::ValuesIn(cases),
//   case_name);
#pragma once

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/collective_group.h"

namespace mladcp {

class CollectiveConformance : public testing::TestWithParam<GroupCase> {
 protected:
  void SetUp() override {
    try {
      group_ = GetParam().make();
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // Fails for everything that a rank of this process found wrong.
  void run(const RankBody& body) {
    for (const std::string& finding : group_->run(body)) EXPECT_EQ(finding, "");
  }

  std::unique_ptr<GroupUnderTest> group_;
};

inline std::string case_name(const testing::TestParamInfo<GroupCase>& info) {
  return info.param.name;
}

}  // namespace mladcp
