// What the checks and reports say: coordinates of a changed byte, bytes of the collectives, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/call_log.h"
#include "core/error.h"
#include "harness/backend.h"
#include "harness/exact_checks.h"
#include "harness/expected_collectives.h"
#include "harness/report.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

Tensor counting_bytes(DType dtype, const Shape& shape, const char* name) {
  Tensor tensor(host_device(), dtype, shape, name);
  for (std::int64_t i = 0; i < tensor.view().bytes(); ++i) {
    tensor.as<unsigned char>()[i] = static_cast<unsigned char>(i % 113);
  }
  return tensor;
}

TEST(ExactChecks, EqualBitsPass) {
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32, DType::kI64}) {
    const Tensor a = counting_bytes(dtype, {3, 5, 7}, "a");
    const Tensor b = counting_bytes(dtype, {3, 5, 7}, "b");
    const Check check = check_equal_bits("write", 2, "the cache", a, b);
    EXPECT_EQ(check.status, CheckStatus::kPass);
    EXPECT_EQ(check.measured, 0.0);
    EXPECT_EQ(check.bound, 0.0);
    EXPECT_EQ(check.message, "");
  }
}

TEST(ExactChecks, AChangedByteIsNamedWithItsCoordinates) {
  const Shape shape = {3, 5, 7};
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32, DType::kI32}) {
    const Tensor wanted = counting_bytes(dtype, shape, "kv_cache");
    for (std::int64_t index = 0; index < 3 * 5 * 7; ++index) {
      const Tensor got = counting_bytes(dtype, shape, "kv_cache");
      const auto width = static_cast<std::int64_t>(size_bytes(dtype));
      got.as<unsigned char>()[index * width + index % width] ^= 0x80;
      const Check check = check_equal_bits("write", 2, "the cache", got, wanted);
      ASSERT_EQ(check.status, CheckStatus::kFail);
      ASSERT_EQ(check.measured, 1.0);
      const std::string at = "[" + std::to_string(index / 35) + ", " +
                             std::to_string(index / 7 % 5) + ", " + std::to_string(index % 7) + "]";
      ASSERT_THAT(check.message, HasSubstr("stage write, rank 2: tensor kv_cache" + at + ": got "));
      ASSERT_THAT(check.message, HasSubstr(", wanted "));
    }
  }
}

TEST(ExactChecks, NansOfEqualBitsAreEqualAndZerosOfTwoSignsAreNot) {
  Tensor a(host_device(), DType::kF32, {2}, "a");
  Tensor b(host_device(), DType::kF32, {2}, "b");
  a.as<float>()[0] = b.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  a.as<float>()[1] = b.as<float>()[1] = 0.0F;
  EXPECT_EQ(check_equal_bits("s", 0, "n", a, b).status, CheckStatus::kPass);
  b.as<float>()[1] = -0.0F;
  EXPECT_EQ(check_equal_bits("s", 0, "n", a, b).status, CheckStatus::kFail);
}

TEST(ExactChecks, AnotherShapeOrDtypeIsNoComparison) {
  const Tensor a = counting_bytes(DType::kBF16, {2, 3}, "a");
  const Check shape = check_equal_bits("s", 0, "n", a, counting_bytes(DType::kBF16, {3, 2}, "b"));
  EXPECT_THAT(shape.message, HasSubstr("got a bf16 [2, 3], wanted b bf16 [3, 2]"));
  const Check dtype = check_equal_bits("s", 0, "n", a, counting_bytes(DType::kF32, {2, 3}, "b"));
  EXPECT_EQ(dtype.status, CheckStatus::kFail);
}

TEST(ExactChecks, ElementsOfFp8AreShownWithTheirCode) {
  Tensor code(host_device(), DType::kE4M3, {1}, "code");
  code.as<unsigned char>()[0] = 0x38;
  EXPECT_EQ(element_text(code, 0), "1 (0x38)");
}

// Bytes per token of DeepSeek-V3 at TP 8, DCP 8: 16 heads a rank, 128 gathered.
struct GoldenCall {
  CollectiveOp op;
  std::int64_t in_bytes;
  std::int64_t out_bytes;
};

void expect_golden(const ParallelConfig& config, const std::vector<GoldenCall>& golden) {
  const auto calls = expected_decode_collectives(config, MlaDims{}, 1);
  ASSERT_EQ(calls.size(), golden.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(describe(calls[i]));
    const CallRecord record = make_record(calls[i], 0, 8);
    EXPECT_EQ(calls[i].op, golden[i].op);
    EXPECT_EQ(calls[i].sequence, static_cast<std::int64_t>(i));
    EXPECT_EQ(record.in_bytes, golden[i].in_bytes);
    EXPECT_EQ(record.out_bytes, golden[i].out_bytes);
  }
}

ParallelConfig deepseek_v3() { return {.heads = 128, .tp = 8, .dcp = 8}; }

TEST(ExpectedCollectives, BytesPerTokenWithAQuantizedQuery) {
  expect_golden(deepseek_v3(), {{CollectiveOp::kAllGather, 9'216, 73'728},
                                {CollectiveOp::kAllGather, 512, 4'096},
                                {CollectiveOp::kReduceScatter, 131'072, 16'384}});
}

TEST(ExpectedCollectives, BytesPerTokenWithABf16Query) {
  ParallelConfig pair = deepseek_v3();
  pair.query = QueryForm::kPair;
  expect_golden(pair, {{CollectiveOp::kAllGather, 18'432, 147'456},
                       {CollectiveOp::kAllGather, 512, 4'096},
                       {CollectiveOp::kReduceScatter, 131'072, 16'384}});
}

TEST(ExpectedCollectives, BytesPerTokenOfThePackedExchange) {
  ParallelConfig packed = deepseek_v3();
  packed.combine = Combine::kAllToAllPacked;
  packed.replicate_query = true;
  expect_golden(packed, {{CollectiveOp::kAllToAll, 131'584, 131'584}});
}

TEST(ExpectedCollectives, OneRankCallsNothing) {
  ParallelConfig alone = deepseek_v3();
  alone.dcp = 1;
  expect_golden(alone, {});
}

TEST(ExpectedCollectives, WireBytesAreWhatOneRankReceives) {
  const auto calls = expected_decode_collectives(deepseek_v3(), MlaDims{}, 1);
  EXPECT_EQ(make_record(calls[0], 0, 8).wire_bytes, 7 * 9'216);
  EXPECT_EQ(make_record(calls[1], 0, 8).wire_bytes, 7 * 512);
  EXPECT_EQ(make_record(calls[2], 0, 8).wire_bytes, 131'072 / 8 * 7);
}

Report small_report() {
  Report report;
  report.verb = "run";
  report.scenario.seq_lens = {5};
  report.checks = {{"write", 0, "the cache"},
                   {"attention", 3, "output", CheckStatus::kFail, 0.5, 0.25, "stage attention"},
                   {"query", 1, "heads", CheckStatus::kSkip, 0.0, 0.0, "no gather"}};
  const CollectiveCall call{
      CollectiveOp::kAllGather, 1, DType::kE4M3, {1, 16, 576}, {1, 128, 576}, "query", 0};
  report.calls = {make_record(call, 0, 8), make_record(call, 1, 8)};
  report.seconds = 2.5;
  report.step_seconds = 0.5;
  return report;
}

TEST(ReportJson, HasTheOneShape) {
  const auto json = nlohmann::json::parse(to_json(small_report()));
  EXPECT_EQ(json.at("schema"), "mladcp.run/1");
  EXPECT_EQ(json.at("verdict"), "fail");
  EXPECT_EQ(json.at("scenario").at("seq_lens"), nlohmann::json({5}));
  EXPECT_EQ(json.at("seconds"), 2.5);
  EXPECT_EQ(json.at("step_seconds"), 0.5);
  ASSERT_EQ(json.at("checks").size(), 3U);
  const nlohmann::json failed = {{"stage", "attention"},
                                 {"rank", 3},
                                 {"name", "output"},
                                 {"status", "fail"},
                                 {"measured", 0.5},
                                 {"bound", 0.25},
                                 {"message", "stage attention"}};
  EXPECT_EQ(json.at("checks")[1], failed);
  EXPECT_EQ(json.at("checks")[0].at("status"), "pass");
  EXPECT_FALSE(json.at("checks")[0].contains("message"));
  EXPECT_EQ(json.at("checks")[2].at("status"), "skip");
  const nlohmann::json gather = {{"sequence", 0},
                                 {"op", "all_gather"},
                                 {"stage", "query"},
                                 {"dim", 1},
                                 {"dtype", "e4m3"},
                                 {"in_shape", {1, 16, 576}},
                                 {"out_shape", {1, 128, 576}},
                                 {"wire_bytes", 64'512},
                                 {"ranks", {0, 1}}};
  EXPECT_EQ(json.at("collectives"), nlohmann::json::array({gather}));
}

TEST(ReportJson, SkipsDoNotFail) {
  Report report = small_report();
  report.checks.erase(report.checks.begin() + 1);
  EXPECT_EQ(nlohmann::json::parse(to_json(report)).at("verdict"), "pass");
}

TEST(CollectiveRows, OneRowASequenceNumberAndOneMoreForARankOutOfStep) {
  Report report = small_report();
  EXPECT_EQ(collective_rows(report.calls).size(), 1U);
  report.calls[1].call.dim = 0;
  const auto rows = collective_rows(report.calls);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1].ranks, std::vector<int>{1});
}

TEST(Backend, ADeviceThisBuildLacksIsRefusedByName) {
  try {
    make_backend("tpu", "in_process", 2, 1.0);
    FAIL() << "accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("tpu"));
    EXPECT_THAT(error.what(), HasSubstr("--device cpu"));
  }
}

}  // namespace
}  // namespace mladcp
