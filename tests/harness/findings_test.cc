// Findings travel between processes and arrive as they were, or are refused.
#include "harness/findings.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace mladcp {
namespace {

ProbeOutcome some_findings() {
  ProbeOutcome findings;
  Check failed{"context attention",
               5,
               "each chunk against fp64",
               CheckStatus::kFail,
               std::numeric_limits<double>::infinity(),
               0.25,
               "stage context attention, rank 5: ..."};
  failed.audited = 132;
  failed.auditable = 5120;
  findings.checks = {failed, skipped("exchange", Check::kAllRanks, "rows", "one rank")};
  CallRecord record;
  record.rank = 5;
  record.call = {CollectiveOp::kAllGather, 0, DType::kBF16, {3, 96}, {12, 96}, "context", 7};
  record.wire_bytes = 1728;
  record.completed = true;
  findings.calls = {record};
  findings.step_seconds = 0.125;
  return findings;
}

TEST(Findings, ArriveAsTheyWere) {
  const ProbeOutcome sent = some_findings();
  const ProbeOutcome got = decode_findings(encode_findings(sent));
  ASSERT_EQ(got.checks.size(), sent.checks.size());
  for (std::size_t i = 0; i < sent.checks.size(); ++i) {
    const Check& a = got.checks[i];
    const Check& b = sent.checks[i];
    EXPECT_EQ(std::tie(a.stage, a.rank, a.name, a.status, a.measured, a.bound, a.message, a.audited,
                       a.auditable),
              std::tie(b.stage, b.rank, b.name, b.status, b.measured, b.bound, b.message, b.audited,
                       b.auditable));
  }
  ASSERT_EQ(got.calls.size(), 1U);
  EXPECT_EQ(got.calls[0].rank, 5);
  EXPECT_EQ(got.calls[0].call, sent.calls[0].call);
  EXPECT_EQ(got.calls[0].wire_bytes, 1728);
  EXPECT_EQ(got.step_seconds, 0.125);
}

TEST(Findings, DamagedOrForeignBytesAreRefused) {
  const std::string bytes = encode_findings(some_findings());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode_findings(bytes.substr(0, length)), InvalidArgument) << length;
  }
  std::string foreign = bytes;
  foreign[0] ^= 1;
  EXPECT_THROW(decode_findings(foreign), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
