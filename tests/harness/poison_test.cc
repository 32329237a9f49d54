// The poisoning device and its probe: what is unwritten is NaN, what is written astray is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/fault_variations.h"
#include "harness/poisoning_device.h"
#include "harness/run_scenario.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

TEST(PoisoningDevice, FreshMemoryIsNanInEveryFormat) {
  PoisoningDevice device(host_device());
  const Tensor bytes(device, DType::kBytes, {24}, "fresh");
  EXPECT_TRUE(std::isnan(bytes.as<float>()[5]));
  EXPECT_TRUE(std::isnan(bytes.as<double>()[2]));
  EXPECT_TRUE(std::isnan(bytes.as<BFloat16>()[11].to_float()));
  EXPECT_TRUE(std::isnan(bytes.as<Float8E4M3>()[23].to_float()));
  // What a kernel finds that reads past an end or before a start.
  EXPECT_TRUE(std::isnan(bytes.as<BFloat16>()[12].to_float()));
  EXPECT_TRUE(std::isnan(bytes.as<float>()[-1]));
}

TEST(PoisoningDevice, UseWithinTheBoundsLeavesTheGuards) {
  PoisoningDevice device(host_device());
  for (const std::int64_t extent : {0, 1, 255, 256, 257, 1001}) {
    const Tensor tensor(device, DType::kBytes, {extent}, "t");
    std::fill_n(tensor.as<unsigned char>(), extent, static_cast<unsigned char>(0));
    EXPECT_TRUE(device.broken_guards().empty()) << extent;
  }
  EXPECT_TRUE(device.broken_guards().empty());
}

TEST(PoisoningDevice, WritesAstrayAreNamedByBytesAndOffset) {
  for (const std::int64_t offset : {-256, -1, 10, 11, 265}) {
    PoisoningDevice device(host_device());
    {
      const Tensor tensor(device, DType::kBytes, {10}, "t");
      tensor.as<unsigned char>()[offset] = 0x3F;
      EXPECT_EQ(device.broken_guards().size(), 1U) << offset << ": while the tensor lives";
    }
    const auto broken = device.broken_guards();
    ASSERT_EQ(broken.size(), 1U) << offset << ": after it is gone";
    EXPECT_EQ(broken[0].bytes, 10U);
    EXPECT_EQ(broken[0].offset, offset);
    EXPECT_EQ(broken[0].written, 0x3F);
  }
}

TEST(PoisoningDevice, DescribesABreachFromTheNearerEnd) {
  EXPECT_EQ(describe(PoisoningDevice::BrokenGuard{10, 11, 0x3F}),
            "a tensor of 10 bytes: byte 11 (2 past its end) was written: 0x3F");
  EXPECT_EQ(describe(PoisoningDevice::BrokenGuard{10, -3, 0x3F}),
            "a tensor of 10 bytes: byte -3 (3 before its start) was written: 0x3F");
}

Scenario poison_scenario() {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = {.heads = 12, .tp = 4, .dcp = 2, .interleave = 2, .page_size = 16};
  scenario.seq_lens = {0, 3, 65, 127};
  scenario.probes = {"poison"};
  return scenario;
}

std::vector<Check> failures(const Variation* variation) {
  Report report = run_scenario(poison_scenario(), variation, [](double, std::string_view) {});
  std::vector<Check> failed;
  std::copy_if(report.checks.begin(), report.checks.end(), std::back_inserter(failed),
               [](const Check& check) { return check.status == CheckStatus::kFail; });
  return failed;
}

TEST(PoisonProbe, CleanRunOfAllGroupsHolds) {
  const Report report = run_scenario(poison_scenario(), nullptr, [](double, std::string_view) {});
  int canaries = 0;
  for (const Check& check : report.checks) {
    EXPECT_NE(check.status, CheckStatus::kFail) << check.message;
    canaries += check.stage == "poison" ? 1 : 0;
  }
  EXPECT_EQ(canaries, 4) << "one a TP rank";
}

TEST(PoisonProbe, OneElementPastTheEndIsReportedForItsRankAlone) {
  OpFunctions functions;
  functions.decode = [](AttentionOps& next, const OpFunctions::Decode& call) {
    call.run(next);
    const BFloat16 one = BFloat16::from_float(1.0F);
    call.out.device->copy_from_host(call.out.as<BFloat16>() + call.out.elements(), &one,
                                    sizeof(one), call.stream);
  };
  const OpFault overrun(1, functions);
  const std::vector<Check> failed = failures(&overrun);
  ASSERT_EQ(failed.size(), 2U) << "rank 1 of both groups";
  for (std::size_t group = 0; group < 2; ++group) {
    EXPECT_EQ(failed[group].stage, "poison");
    EXPECT_EQ(failed[group].rank, static_cast<int>(2 * group + 1));
    // partial output [4, 6, 64] bf16
    EXPECT_THAT(failed[group].message,
                HasSubstr("a tensor of 3072 bytes: byte 3072 (1 past its end) was written: 0x80"));
  }
}

TEST(PoisonProbe, AnUnwrittenRowShowsAsNan) {
  OpFunctions functions;
  functions.absorb = [](QueryOps& next, const TensorView& out, const TensorView& q_nope,
                        const TensorView& w_uk, Stream stream) {
    const std::int64_t rows = out.size(0) - 1;  // the last is left as it was
    next.absorb(out.narrow(0, 0, rows), q_nope.narrow(0, 0, rows), w_uk, stream);
  };
  const OpFault unwritten(0, functions);
  const std::vector<Check> failed = failures(&unwritten);
  ASSERT_FALSE(failed.empty());
  EXPECT_EQ(failed[0].stage, "absorb");
  EXPECT_EQ(failed[0].rank, 0);
  EXPECT_THAT(failed[0].message, HasSubstr("nan"));
}

}  // namespace
}  // namespace mladcp
