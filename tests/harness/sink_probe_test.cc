// The sink stands above the crowd whatever the scales, or the probe says that no codes make one.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "harness/run_scenario.h"
#include "harness/sensitivity.h"

namespace mladcp {
namespace {

struct Scales {
  float q = 1.0F;
  float k = 1.0F;
};

FaultKind crowd_flushed() {
  const std::vector<FaultKind>& kinds = fault_kinds();
  return *std::find_if(kinds.begin(), kinds.end(),
                       [](const FaultKind& kind) { return kind.name == "P flushed below"; });
}

Scenario at_scales(const Scales& scales) {
  Scenario scenario = sensitivity_scenario(crowd_flushed(), 128);
  scenario.parallel.q_scale = scales.q;
  scenario.parallel.k_scale = scales.k;
  return scenario;
}

// e^-9 is 1.2e-4; the sink's key rounds by 2^-4.
TEST(SinkProbe, SeesAFlushedCrowdAtAnyScales) {
  const auto backend = make_backend("cpu", "in_process", 2, 60.0);
  FaultKind kind = crowd_flushed();
  kind.sizes = {0x1p-12};
  for (const Scales& scales :
       {Scales{1.0F, 1.0F}, Scales{0.03F, 0.04F}, Scales{0.7F, 1.0F / 448.0F},
        Scales{1.0F / 448.0F, 512.0F}, Scales{300.0F, 0.003F}, Scales{512.0F, 512.0F}}) {
    SCOPED_TRACE(testing::Message() << "q_scale " << scales.q << ", k_scale " << scales.k);
    EXPECT_EQ(smallest_caught(kind, 128, at_scales(scales), *backend).smallest, 0x1p-12);
  }
}

TEST(SinkProbe, SaysWhereNoCodesMakeASink) {
  const Scenario scenario = at_scales({1.0F / 448.0F, 1.0F / 448.0F});
  const Report report = run_scenario(scenario, nullptr, [](double, std::string_view) {});
  ASSERT_EQ(report.checks.size(), 1U);
  EXPECT_EQ(report.checks[0].status, CheckStatus::kSkip);
  EXPECT_EQ(report.checks[0].message,
            "q_scale * k_scale = 5e-06: no codes make a logit of 9; give larger scales");
}

}  // namespace
}  // namespace mladcp
