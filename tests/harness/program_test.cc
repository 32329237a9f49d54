// The program as its users meet it: exit status and what the first line says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <string>

#include "tests/harness/program.h"

namespace mladcp {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kSmall = "run --model tiny --heads 8 --tp 4 --dcp 4 --seq-lens 1,63,130 ";

TEST(Program, CleanRunExitsZeroWithOneJsonObject) {
  const Outcome outcome = run_program(std::string(kSmall) + "--json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json.at("schema"), "mladcp.run/1");
  EXPECT_EQ(json.at("verdict"), "pass");
  EXPECT_EQ(json.at("scenario").at("dcp"), 4);
  EXPECT_EQ(json.at("collectives").size(), 3U);
  EXPECT_EQ(json.at("collectives")[0].at("op"), "all_gather");
  EXPECT_EQ(json.at("collectives")[0].at("dtype"), "e4m3");
  EXPECT_EQ(json.at("collectives")[0].at("ranks").size(), 4U);
  for (const auto& check : json.at("checks")) {
    EXPECT_TRUE(check.at("status") == "pass" || check.at("status") == "skip") << check;
  }
}

TEST(Program, PrefillNamesItsStages) {
  const Outcome outcome = run_program(
      "run --model tiny --heads 8 --tp 4 --dcp 4 --interleave 16 --phase prefill "
      "--context-lens 0,65,2000,9 --new-tokens 7,64,1,130 --workspace 1024 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json.at("verdict"), "pass");
  EXPECT_EQ(json.at("scenario").at("workspace"), 1024);
  EXPECT_EQ(json.at("collectives").size(), 3U);
  EXPECT_EQ(json.at("collectives")[0].at("stage"), "context");
  std::set<std::string> stages;
  for (const auto& check : json.at("checks")) {
    EXPECT_EQ(check.at("status"), "pass") << check;
    stages.insert(check.at("stage"));
  }
  for (const char* stage :
       {"plan", "gather", "exchange", "reorganise", "context attention", "merge"}) {
    EXPECT_EQ(stages.count(stage), 1U) << stage;
  }
}

TEST(Program, ConversationsOfATrace) {
  const Outcome outcome = run_program(
      "run --model tiny --heads 8 --phase both --dcp 8 --kv-dtype fp8 --batch 4 "
      "--lengths tests/data/azure_llm_code.csv");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("workspace 4096 rows"));
}

TEST(Program, FakeGroupStillChecksOrderAndShapes) {
  const Outcome outcome = run_program(std::string(kSmall) + "--collective fake");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("skipped"));
}

// The tests read a pipe, not a terminal: no progress bar among what is printed.
TEST(Program, ProgressBarIsSilentOffATerminal) {
  const Outcome outcome = run_program(kSmall);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, StartsWith("mladcp run: "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("\r")));
}

struct BadInput {
  const char* arguments;
  const char* names;

  friend std::ostream& operator<<(std::ostream& out, const BadInput& b) {
    return out << b.arguments;
  }
};

TEST(Program, BadInputExitsTwoNamingFieldAndValue) {
  const BadInput inputs[] = {
      {"run --dcp 3", "tp = 8"},
      {"run --dcp 0", "dcp = 0"},
      {"run --heads 100", "heads = 100"},
      {"run --page-size 48 --interleave 32", "page_size = 48"},
      {"run --q-scale 0", "q_scale"},
      {"run --k-scale nan", "k_scale"},
      {"run --kv-dtype int4", "int4"},
      {"run --kv-dtype bf16 --query quantized", "quantized"},
      {"run --model gpt-2", "gpt-2"},
      {"run --seq-lens 1,-5", "seq_lens[1] = -5"},
      {"run --seq-lens 1,x", "x"},
      {"run --lengths /no/such/file.csv", "/no/such/file.csv"},
      {"run --lengths tests/data/azure_llm_code.csv:Nope", "Nope"},
      {"run --scenario /no/such/scenario.json", "/no/such/scenario.json"},
      {"run --json /no/such/folder/report.json", "/no/such/folder"},
      {"run --no-such-flag", "no-such-flag"},
      {"run --probe sonar", "sonar"},
      {"run --phase prefill --workspace 8 --interleave 64 --dcp 8", "give at least 512"},
      {"run --workspace 8 --interleave 64 --dcp 8", "workspace_rows = 8"},
      {"run --phase prefill --dcp 4 --workspace 130", "multiple of world_size = 4"},
      {"run --phase prefill --context-lens 1,2 --new-tokens 3,4,5", "new_tokens has 3"},
      {"run --phase prefill --context-lens 1,-2 --new-tokens 3", "context_lens[1] = -2"},
      {"run --phase prefill --seq-lens 5", "--context-lens"},
      {"run --phase both --seq-lens 5 --context-lens 5", "context_lens"},
      {"run --phase postfill", "postfill"},
      {"run --batch -1", "batch = -1"},
      {"run --batch 0 --seq-lens 5", "--batch"},
      {"run --phase prefill --audit some", "audit = 'some'"},
      {"run --phase prefill --audit 0", "audit = '0'"},
      {"run --device cuda --model tiny --heads 8", "L and R 64, 32"},
      {"run --device cuda --page-size 48 --interleave 1", "page 48"},
      {"no-such-verb", "no-such-verb"},
      {"", "subcommand"},
  };
  for (const BadInput& input : inputs) {
    SCOPED_TRACE(input);
    const Outcome outcome = run_program(input.arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(input.names));
  }
}

TEST(Program, WhatCannotRunHereExitsThreeWithARemedy) {
  const BadInput inputs[] = {
      {"run --collective nccl", "use --device cuda"},
      {"run --device cuda --collective mpi", "use --device cpu"},
  };
  for (const BadInput& input : inputs) {
    SCOPED_TRACE(input);
    const Outcome outcome = run_program(input.arguments);
    EXPECT_EQ(outcome.status, 3) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(input.names));
  }
}

TEST(Program, HelpExitsZero) {
  EXPECT_EQ(run_program("--help").status, 0);
  EXPECT_EQ(run_program("run --help").status, 0);
}

TEST(Program, AReportThatCannotBeWrittenIsNoSuccess) {
  EXPECT_EQ(run_program("plan --seq-lens 3 >/dev/full").status, 3);  // both streams are full
}

TEST(Program, SizesThatNoProductHoldsAreRefused) {
  const std::string most = "9223372036854775807";
  for (const char* flag : {"--page-size ", "--interleave ", "--heads ", "--tp ", "--q-len "}) {
    const Outcome outcome = run_program("plan --seq-lens 3 " + (flag + most));
    EXPECT_EQ(outcome.status, 2) << flag;
    EXPECT_THAT(outcome.output, HasSubstr("must be at most")) << flag;
  }
  EXPECT_EQ(run_program("run --seq-lens 3 --timeout 1e300").status, 2);
  EXPECT_EQ(run_program("metadata --seq-lens 5 --rank 0 --dcp 8 --interleave " + most).status, 2);
}

}  // namespace
}  // namespace mladcp
