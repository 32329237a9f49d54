// mladcp metadata: reading foreign schedules, verdicts, reports and the picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "harness/exit_status.h"
#include "harness/metadata_report.h"
#include "harness/schedule_file.h"
#include "harness/verbs.h"
#include "tests/support/temporary_path.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

const std::string kGoldens = test_data_path("golden/flashmla_metadata.jsonl");

class MetadataTest : public ::testing::Test {
 protected:
  MetadataTest() { std::filesystem::create_directories(folder_); }
  ~MetadataTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  // `mladcp metadata ARGUMENTS`: the exit status, or the message of InvalidArgument (status 2).
  std::string run(std::vector<std::string> arguments) {
    CLI::App program;
    int status = -1;
    add_metadata_verb(program, status);
    arguments.insert(arguments.begin(), "metadata");
    std::reverse(arguments.begin(), arguments.end());  // what CLI11's vector form wants
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    std::string result;
    try {
      program.parse(arguments);
      result = std::to_string(status);
    } catch (const InvalidArgument& error) {
      result = error.what();
    } catch (const CLI::ParseError& error) {
      result = std::string("usage: ") + error.what();
    }
    std::fflush(stdout);
    out_ = ::testing::internal::GetCapturedStdout();
    ::testing::internal::GetCapturedStderr();
    return result;
  }

  std::string out_;  // standard output of the last run

 private:
  std::string folder_ = temporary_path("metadata");
};

Json golden_line(std::int64_t number) {
  std::ifstream file(kGoldens);
  std::string line;
  for (std::int64_t i = 0; i <= number; ++i) std::getline(file, line);
  return Json::parse(line);
}

TEST_F(MetadataTest, BuildsTheScheduleForGatheredHeads) {
  EXPECT_EQ(run({"--seq-lens", "4096,0,1", "--heads", "16", "--dcp", "8", "--sms", "132",
                 "--dialect", "blocks", "--json", "-"}),
            "0");
  const Json report = Json::parse(out_);
  EXPECT_EQ(report["schema"], "mladcp.metadata/1");
  EXPECT_EQ(report["verdict"], "pass");
  EXPECT_EQ(report["gathered"]["num_sm_parts"], 66);
  EXPECT_EQ(report["local"]["num_sm_parts"], 132);
  EXPECT_EQ(report["gathered"]["tile_scheduler_metadata"][33], Json({2, 0, 2, 1, 0, 0, 0, 0}));
  EXPECT_EQ(report["gathered"]["num_splits"], Json({0, 32, 33, 34}));
  EXPECT_EQ(report["gathered"]["thread_blocks_per_part"], 2);
  EXPECT_EQ(report["gathered"]["sm_load_blocks"].size(), 132u);
  EXPECT_EQ(report["checks"].size(), 18u);
  for (const Json& check : report["checks"]) {
    EXPECT_EQ(check["status"], "pass") << check;
    EXPECT_EQ(check["bound"], 0);
  }
}

TEST_F(MetadataTest, SaysWhatLocalHeadsCost) {
  MetadataScenario scenario;
  scenario.lengths = {4808};
  scenario.dcp = 8;
  const MetadataReport report = study_schedule(scenario);
  EXPECT_EQ(report.gathered.timeline.makespan, 7);
  EXPECT_EQ(report.local.timeline.makespan, 12);
  EXPECT_EQ(report.local.partial_bytes, 2 * report.gathered.partial_bytes);
  EXPECT_EQ(report.flops, std::int64_t{2} * 128 * 4808 * (576 + 512));
  EXPECT_TRUE(report.pass());
  EXPECT_EQ(run({"--seq-lens", "4808", "--dcp", "8"}), "0");
  EXPECT_THAT(
      out_, AllOf(HasSubstr("12 instead of 7"), HasSubstr("76 instead of 38"), HasSubstr("PASS")));
  EXPECT_EQ(run({"--seq-lens", "4808", "--heads", "16", "--dcp", "2"}), "0");
  EXPECT_THAT(out_, HasSubstr("cannot show that fault"));
}

TEST_F(MetadataTest, TakesTheShareOfARank) {
  EXPECT_EQ(run({"--seq-lens", "300,64,7", "--dcp", "2", "--interleave", "128", "--rank", "1",
                 "--json", "-"}),
            "0");
  EXPECT_EQ(Json::parse(out_)["scenario"]["seq_lens"], Json({128, 0, 0}));
  EXPECT_THAT(run({"--seq-lens", "300", "--dcp", "2", "--rank", "2"}),
              HasSubstr("--rank is 2, must be in 0..1"));
}

TEST_F(MetadataTest, TakesLengthsFromATrace) {
  const std::string csv = write("trace.csv", "t,input_tokens\n1,100\n2,4000\n3,7\n");
  EXPECT_EQ(run({"--lengths", csv, "--batch", "2", "--json", "-"}), "0");
  EXPECT_EQ(Json::parse(out_)["scenario"]["seq_lens"], Json({100, 4000}));
  EXPECT_EQ(run({"--lengths", csv + ":t", "--batch", "3", "--json", "-"}), "0");
  EXPECT_EQ(Json::parse(out_)["scenario"]["seq_lens"], Json({1, 2, 3}));
}

TEST_F(MetadataTest, GoldensHold) {
  EXPECT_EQ(run({"--from", kGoldens}), "0");
  EXPECT_THAT(out_, HasSubstr("PASS: 0 of 560 schedules"));
  const std::string one = write("one.json", golden_line(17).dump(2));
  EXPECT_EQ(run({"--from", one, "--json", path("verdict.json")}), "0");
  const Json verdict = Json::parse(read(path("verdict.json")));
  EXPECT_EQ(verdict["verdict"], "pass");
  EXPECT_EQ(verdict["checks"].size(), 9u);
}

TEST_F(MetadataTest, OneChangedNumberFailsNamingRequestAndPart) {
  Json golden = golden_line(0);
  golden["tile_scheduler_metadata"][2][4] = 1;
  EXPECT_EQ(run({"--from", write("split.json", golden.dump())}), "1");
  EXPECT_THAT(out_, HasSubstr("split.json:1, law begin_split: request 4, part 2: begin split"));

  golden = golden_line(0);
  golden["num_splits"][5] = golden["num_splits"][5].get<int>() + 1;
  const std::string lines = golden_line(1).dump() + "\n" + golden.dump() + "\n";
  EXPECT_EQ(run({"--from", write("lines.jsonl", lines), "--json", "-"}), "1");
  const Json verdict = Json::parse(out_);
  EXPECT_EQ(verdict["verdict"], "fail");
  ASSERT_THAT(verdict["violations"], SizeIs(1));
  EXPECT_EQ(verdict["violations"][0]["schedule"], "line 2");
  EXPECT_EQ(verdict["violations"][0]["law"], "num_splits");
  EXPECT_EQ(verdict["violations"][0]["request"], 4);
  EXPECT_TRUE(verdict["violations"][0]["part"].is_number());
}

// A dump of a step that was scheduled for local heads.
TEST_F(MetadataTest, PartCountIsJudgedForGatheredHeads) {
  EXPECT_EQ(run({"--seq-lens", "5000,12", "--heads", "16", "--json", path("local.json")}), "0");
  EXPECT_EQ(run({"--from", path("local.json")}), "0");
  EXPECT_EQ(run({"--from", path("local.json"), "--heads", "16", "--dcp", "8"}), "1");
  EXPECT_THAT(out_, HasSubstr("law part_count: 132 parts, must be 66"));
  EXPECT_EQ(run({"--from", path("local.json"), "--heads", "16", "--dcp", "8", "--sms", "264"}),
            "0");
}

TEST_F(MetadataTest, BadInputNamesFieldValueAndRemedy) {
  EXPECT_THAT(run({}), HasSubstr("one of --seq-lens and --lengths"));
  EXPECT_THAT(run({"--seq-lens", "5,-3"}), HasSubstr("entry 1 is '-3'"));
  EXPECT_THAT(run({"--seq-lens", "5,,3"}), HasSubstr("entry 1 is ''"));
  EXPECT_THAT(run({"--seq-lens", "5,3x"}), HasSubstr("entry 1 is '3x'"));
  EXPECT_THAT(run({"--seq-lens", "2147483648"}), HasSubstr("'2147483648'"));
  EXPECT_THAT(run({"--seq-lens", "5", "--sms", "0"}), HasSubstr("--sms is 0"));
  EXPECT_THAT(run({"--seq-lens", "5", "--heads", "0"}), HasSubstr("--heads is 0"));
  EXPECT_THAT(run({"--seq-lens", "5", "--dcp", "-1"}), HasSubstr("--dcp is -1"));
  EXPECT_THAT(run({"--seq-lens", "5", "--q-len", "0"}), HasSubstr("--q-len is 0"));
  EXPECT_THAT(run({"--seq-lens", "5", "--block", "0"}), HasSubstr("--block is 0"));
  EXPECT_THAT(run({"--seq-lens", "5", "--overhead", "-2"}), HasSubstr("--overhead is -2"));
  EXPECT_THAT(run({"--seq-lens", "5", "--dialect", "pages"}), HasSubstr("'pages'"));
  EXPECT_THAT(run({"--seq-lens", "5", "--kv-dtype", "fp32"}), HasSubstr("--kv-dtype"));
  EXPECT_THAT(run({"--seq-lens", "5", "--heads", "4611686018427387904", "--dcp", "4"}),
              HasSubstr("heads"));
  EXPECT_THAT(run({"--seq-lens", "5", "--batch", "2"}), HasSubstr("need --lengths"));
  EXPECT_THAT(run({"--seq-lens", "5", "--interleave", "2"}), HasSubstr("needs --rank"));
  EXPECT_THAT(run({"--seq-lens", "5", "--svg", "/nowhere/x.svg"}), HasSubstr("--svg"));
  EXPECT_THAT(run({"--seq-lens", "5", "--json", "/nowhere/x.json"}), HasSubstr("--json"));
  EXPECT_THAT(run({"--from", "/nowhere/x.json"}), HasSubstr("/nowhere/x.json"));
  EXPECT_THAT(run({"--from", kGoldens, "--seq-lens", "5"}), HasSubstr("--from"));
  EXPECT_THAT(run({"--from", kGoldens, "--q-len", "2"}), HasSubstr("--heads"));
  for (const char* flag :
       {"--batch", "--seed", "--rank", "--interleave", "--block", "--overhead"}) {
    EXPECT_THAT(run({"--from", kGoldens, flag, "1"}), HasSubstr(flag));
  }
  EXPECT_THAT(run({"--from", kGoldens, "--dialect", "blocks"}), HasSubstr("--dialect"));
  EXPECT_THAT(run({"--from", kGoldens, "--kv-dtype", "fp8"}), HasSubstr("--kv-dtype"));
  EXPECT_THAT(run({"--seq-lens", "5", "--block", "4294967296"}),
              HasSubstr("--block is 4294967296"));
  EXPECT_THAT(run({"--seq-lens", "5", "--pages"}), HasSubstr("usage: "));
  std::string many = "1";
  for (std::int64_t b = 0; b < kMaxScheduledRequests; ++b) many += ",1";
  EXPECT_THAT(run({"--seq-lens", many}), HasSubstr("16385 requests, at most 16384"));
}

TEST_F(MetadataTest, MalformedFilesNameLineAndField) {
  const std::string good = golden_line(3).dump();
  const auto message = [&](const std::string& content) {
    try {
      read_schedules(write("bad.jsonl", content));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("read");
  };
  EXPECT_EQ(message(good + "\n\n" + good), "read");
  EXPECT_THAT(message(good + "\n{\"variant\": 3"),
              AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("JSON")));
  EXPECT_THAT(message("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message(good + "\n{x"),
              AllOf(HasSubstr("bad.jsonl:2: not JSON"), HasSubstr("parse error at column 2: ")));
  EXPECT_THAT(message("{\"variant\": 1e999}"), HasSubstr("bad.jsonl: not JSON"));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(message("{\"variant\": " + deep + "}"), HasSubstr("nests deeper than 64"));
  EXPECT_THAT(message(" \n"), HasSubstr("empty"));
  EXPECT_THAT(message("[1, 2]"), HasSubstr("not an object"));
  const auto spoiled = [&](const char* field, const Json& value) {
    Json object = golden_line(3);
    object[field] = value;
    return message(object.dump());
  };
  EXPECT_THAT(spoiled("variant", "pages"), HasSubstr("variant is \"pages\""));
  EXPECT_THAT(spoiled("seq_lens", 5), HasSubstr("seq_lens is '5', must be an array"));
  EXPECT_THAT(spoiled("seq_lens", Json({4, -1})), HasSubstr("seq_lens[1] is -1"));
  EXPECT_THAT(spoiled("seq_lens", Json({4, 2.5})), HasSubstr("seq_lens[1] is '2.5'"));
  EXPECT_THAT(spoiled("num_splits", Json({0, 18446744073709551615ULL})),
              HasSubstr("num_splits[1] is '18446744073709551615'"));
  EXPECT_THAT(spoiled("tile_scheduler_metadata", Json::array({Json::array({0, 0, 0, 1})})),
              HasSubstr("tile_scheduler_metadata[0] has 4 numbers"));
  EXPECT_THAT(spoiled("block_n", 0), HasSubstr("block_n is 0"));
  for (const char* field : {"block_n", "fixed_overhead", "heads_times_q", "num_sms"}) {
    EXPECT_THAT(spoiled(field, 18446744073709551615ULL), HasSubstr(field));
    EXPECT_THAT(spoiled(field, std::int64_t{1} << 32), HasSubstr("must be an integer of 32 bits"));
    EXPECT_THAT(spoiled(field, 64.0), HasSubstr("is '64.0', must be an integer"));
  }
  const std::string twice =
      R"({"block_n": 64, )" + good.substr(1, good.size() - 2) + R"(, "block_n": 32})";
  EXPECT_THAT(message(twice), HasSubstr("key \"block_n\" is named twice"));
  Json object = golden_line(3);
  object.erase("num_splits");
  EXPECT_THAT(message(object.dump()),
              HasSubstr("num_splits is missing; give the fields variant, seq_lens"));
}

TEST_F(MetadataTest, PictureDrawsEveryPieceOfBothSchedules) {
  EXPECT_EQ(run({"--seq-lens", "4808,0,70", "--dcp", "8", "--svg", path("a.svg")}), "0");
  const std::string svg = read(path("a.svg"));
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"),
                         HasSubstr("scheduled for 128 gathered heads"),
                         HasSubstr("scheduled for 16 local heads")));
  MetadataScenario scenario;
  scenario.lengths = {4808, 0, 70};
  scenario.dcp = 8;
  const MetadataReport report = study_schedule(scenario);
  std::size_t wanted = 1;  // the background
  for (const ScheduleSide* side : {&report.gathered, &report.local}) {
    for (const SchedulePiece& piece : side->pieces) {
      wanted += static_cast<std::size_t>(side->tiles) * (piece.blocks > 0 ? 2 : 1);
    }
  }
  std::size_t rectangles = 0;
  for (std::size_t at = svg.find("<rect"); at != std::string::npos;
       at = svg.find("<rect", at + 1)) {
    ++rectangles;
  }
  EXPECT_EQ(rectangles, wanted);
}

}  // namespace
}  // namespace mladcp
