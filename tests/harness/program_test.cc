// The program as its users meet it: exit status and what the first line says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <span>
#include <string>

#include "tests/harness/program.h"
#include "tests/support/temporary_path.h"

namespace mladcp {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

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
  EXPECT_THAT(outcome.output, HasSubstr("skipped 4: no LSE gather among real peers\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("PASS: 0 of [0-9]+ checks failed, [0-9]+ skipped;"));
}

TEST(Program, NoCollectivesIsNotOneRank) {
  const Outcome outcome = run_program("plan --phase prefill --context-lens 0 --new-tokens 5");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nno collectives\n"));
}

TEST(Program, CheckTakesOneFileARank) {
  const std::string dumps =
      "check tests/golden/flashmla_fp8_a.safetensors tests/golden/flashmla_fp8_c.safetensors ";
  const Outcome outcome = run_program(dumps + "--numerics flashmla_fp8 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json.at("scenario").at("files").size(), 2U);
  std::set<int> ranks;
  for (const auto& check : json.at("checks")) ranks.insert(check.at("rank").get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(run_program("check --numerics flashmla_fp8 " + dumps.substr(6)).status, 0);
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

// Each ends with this status and one message, ours, that names what it must.
void expect_refused(std::span<const BadInput> inputs, int status) {
  for (const BadInput& input : inputs) {
    SCOPED_TRACE(input);
    const Outcome outcome = run_program(input.arguments);
    EXPECT_EQ(outcome.status, status) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(StartsWith("mladcp: "), HasSubstr(input.names)));
  }
}

TEST(Program, BadInputExitsTwoNamingFieldAndValue) {
  const BadInput inputs[] = {
      {"run --dcp 3", "tp = 8"},
      {"run --dcp 0", "dcp = 0"},
      {"run --heads 100", "heads = 100"},
      {"run --page-size 48 --interleave 32", "page_size = 48"},
      {"run --q-scale 0", "q_scale"},
      {"run --k-scale nan", "k_scale"},
      {"run --k-scale 2.2e-3",
       "k_scale = 0.0022: must be from 0.002232143 (1/448) to 512, for codes to hold contents of "
       "deviation 1"},
      {"run --q-scale 513", "q_scale = 513: must be from 0.002232143 (1/448) to 512"},
      {"run --kv-dtype int4", "int4"},
      {"run --kv-dtype bf16 --query quantized", "quantized"},
      {"run --model gpt-2", "gpt-2"},
      {"run --seq-lens 1,-5", "seq_lens[1] = -5"},
      {"run --seq-lens 1,x", "x"},
      {"run --lengths /no/such/file.csv", "/no/such/file.csv"},
      {"run --lengths tests/data/azure_llm_code.csv:Nope", "Nope"},
      {"run --scenario /no/such/scenario.json", "/no/such/scenario.json"},
      {"run --json /no/such/folder/report.json", "report.json cannot be written: No such file or"},
      {"run --json /tmp", "--json /tmp cannot be written: Is a directory; name another file"},
      {"metadata --seq-lens 5 --svg /no/such/x", "--svg /no/such/x cannot be written: No such"},
      {"metadata --seq-lens 5 --svg -", "--svg is '-': drawings go to a file alone; name one"},
      {"metadata --seq-lens 5 --svg x --json ./x",
       "--svg is 'x', a file that the command names elsewhere too"},
      {"run --no-such-flag 5", "'--no-such-flag 5' was not expected; see mladcp run --help"},
      {"run --seq-lens 1, 2", "'2' was not expected; a list has commas between its values"},
      {"run --probe sonar", "sonar"},
      {"plan --probe sonar", "sonar"},
      {"plan --probe numeric,census,numeric", "probe = 'numeric' is named twice"},
      {"plan --probe all,numeric", "probe = 'all' beside others"},
      {"run --phase prefill --workspace 8 --interleave 64 --dcp 8", "give at least 512"},
      {"run --phase prefill --workspace -7", "workspace = -7: must be between 1 and 2147483647"},
      {"run --phase prefill --workspace 99999999999", "workspace = 99999999999: must be between"},
      {"metadata --seq-lens 5 --overhead 2147483647", "lower the overhead of 2147483647 blocks"},
      {"run --phase prefill --dcp 4 --workspace 130", "multiple of world_size = 4"},
      {"run --phase prefill --context-lens 1,2 --new-tokens 3,4,5", "new_tokens has 3"},
      {"run --phase prefill --context-lens 1,-2 --new-tokens 3", "context_lens[1] = -2"},
      {"run --phase postfill", "postfill"},
      {"run --batch -1", "batch = -1"},
      {"run --batch 0 --seq-lens 5", "batch = 0: needs lengths"},
      {"run --lengths tests/data/azure_llm_code.csv --seq-lens 5", "lengths beside seq_lens"},
      {"run --phase prefill --audit some", "audit = 'some'"},
      {"run --phase prefill --audit 0", "audit = '0'"},
      {"run --device cuda --model tiny --heads 8", "L and R 64, 32"},
      {"run --device cuda --page-size 48 --interleave 1", "page 48"},
      {"run --model tiny --heads 16384 --tp 16384 --dcp 16384 --seq-lens 5",
       "tp = 16384, dcp = 16384, heads = 16384, seq_lens of 1 entries: a decode step of all ranks "
       "would take at least 35305 GB, and this machine has "},
      {"no-such-verb", "no-such-verb"},
      {"", "which subcommand? see mladcp --help"},
  };
  expect_refused(inputs, 2);
}

TEST(Program, EveryFlagReadsItsWholeValueOrNamesIt) {
  const BadInput inputs[] = {
      {"run --seq-lens ''", "--seq-lens '': entry 0 is ''"},
      {"run --seq-lens 1,,2", "--seq-lens '1,,2': entry 1 is ''"},
      {"run --seq-lens 1,2,", "--seq-lens '1,2,': entry 2 is ''"},
      {"run --context-lens ,1", "--context-lens ',1': entry 0 is ''"},
      {"run --new-tokens 1,", "--new-tokens '1,': entry 1 is ''"},
      {"run --probe numeric,", "--probe 'numeric,': entry 1 is ''"},
      {"run --seq-lens 1,99999999999999999999", "entry 1 is '99999999999999999999'"},
      {"run --tp 99999999999999999999", "--tp is '99999999999999999999'"},
      {"run --tp 4x", "--tp is '4x'"},
      {"run --seed -1", "--seed is '-1'"},
      {"run --seed 18446744073709551616", "--seed is '18446744073709551616'"},
      {"run --q-scale 1e99",
       "--q-scale is '1e99', must be a number that 32 bits hold, 0 or of a "
       "magnitude from 1.2e-38 to 3.4e+38"},
      {"run --q-scale 1e-300", "--q-scale is '1e-300', must be a number that 32 bits hold"},
      {"run --dcp abc", "--dcp is 'abc', must be a whole number that 64 bits hold"},
      {"run --kv-dtype int8", "--kv-dtype is 'int8', must be bf16 or fp8 for a cache"},
      {"run --reduce-dtype fp16", "must be bf16 or fp8 for a cache, bf16 or fp32 for a reduction"},
      {"metadata --seq-lens 5 --kv-dtype int8", "--kv-dtype is 'int8', must be bf16 or fp8"},
      {"run --timeout 1e-400", "--timeout is '1e-400', must be a number that 64 bits hold"},
      {"run --timeout soon", "--timeout is 'soon'"},
      {"run --validate=perhaps", "--validate is 'perhaps'"},
      {"run --model ''", "--model is ''"},
      {"run --json ''", "--json is ''"},
      {"run --json= --tp 4", "--json="},
      {"run --scenario ''", "--scenario is ''"},
      {"run --lengths ''", "--lengths is ''"},
      {"plan --json ''", "--json is ''"},
      {"faults --only ''", "--only is ''"},
      {"check ''", "files is ''"},
      {"check x --numerics ''", "--numerics is ''"},
      {"metadata --from ''", "--from is ''"},
      {"metadata --seq-lens 5 --svg ''", "--svg is ''"},
      {"metadata --seq-lens 5,", "--seq-lens '5,': entry 1 is ''"},
      {"metadata --seq-lens 5 --sms 99999999999999999999", "--sms is '99999999999999999999'"},
      {"metadata --lengths x --seed -1", "--seed is '-1'"},
  };
  expect_refused(inputs, 2);
}

// A name that writes on the terminal, makes a line of its own, or ends the message.
TEST(Program, ControlCharactersOfInputAreShownNotSent) {
  const Outcome flag = run_program("run --model \"`printf 'a\\033[31mb\\nmladcp: c'`\"");
  EXPECT_EQ(flag.status, 2);
  EXPECT_THAT(flag.output, StartsWith("mladcp: model = 'a\\x1b[31mb\n  mladcp: c': use one of"));
  const Outcome json =
      run_program("run --scenario /dev/stdin", R"(echo '{"model": "a\u0000b"}' | )");
  EXPECT_EQ(json.status, 2);
  EXPECT_THAT(json.output, HasSubstr(R"(key 'model': is 'a\x00b', must not hold a NUL character)"));
}

// Settings that another phase, combine or collective would read.
TEST(Program, WhatMeansNothingHereIsRefused) {
  const BadInput inputs[] = {
      {"run --context-lens 5", "context_lens means nothing in decode"},
      {"run --new-tokens 5", "new_tokens means nothing in decode"},
      {"run --workspace 4096", "workspace means nothing in decode"},
      {"run --audit 2", "audit means nothing in decode"},
      {"run --phase prefill --seq-lens 5", "seq_lens means nothing in prefill"},
      {"run --phase prefill --q-len 2", "q_len means nothing in prefill"},
      {"run --phase both --seq-lens 5 --context-lens 5", "context_lens means nothing in both"},
      {"run --phase prefill --query pair", "query means nothing in prefill"},
      {"run --phase prefill --q-scale 3", "q_scale means nothing in prefill"},
      {"run --phase prefill --combine a2a", "combine means nothing in prefill"},
      {"run --phase prefill --reduce-dtype fp32", "reduce_dtype means nothing in prefill"},
      {"run --phase prefill --project-before-merge", "project_before_merge means nothing in"},
      {"run --phase prefill --replicate-query", "replicate_query means nothing in prefill"},
      {"run --query pair --q-scale 3", "q_scale means nothing in pair: it belongs to query"},
      {"run --kv-dtype bf16 --q-scale 3", "q_scale means nothing in pair"},
      {"run --kv-dtype bf16 --k-scale 2", "k_scale means nothing in bf16"},
      {"run --combine a2a --reduce-dtype fp32", "reduce_dtype means nothing in a2a"},
      {"run --collective fake --validate", "validate means nothing in fake"},
      {"plan --collective fake --timeout 3", "timeout means nothing in fake"},
      {"metadata --from x --overhead 4", "--overhead"},
      {"metadata --from x --rank 0", "--rank"},
  };
  expect_refused(inputs, 2);
  const std::string defaults =
      "--workspace 0 --audit auto --reduce-dtype bf16 --combine a2a --kv-dtype bf16 --k-scale 1 ";
  EXPECT_EQ(run_program("plan --seq-lens 5 --collective fake --timeout 60 " + defaults).status, 0);
}

TEST(Program, WhatIsNoFileIsRefusedAtOnce) {
  const std::string pipe = temporary_path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* arguments :
       {"run --scenario ", "run --lengths ", "metadata --from ", "check "}) {
    for (const std::string& path : {pipe, testing::TempDir()}) {
      const Outcome outcome = run_program(arguments + path, "timeout 20 ");
      EXPECT_EQ(outcome.status, 2) << arguments << path << outcome.output;
      EXPECT_THAT(outcome.output, AllOf(StartsWith("mladcp: "), HasSubstr(path)));
    }
  }
  unlink(pipe.c_str());
  const Outcome piped = run_program("plan --scenario /dev/stdin", "echo '{\"seq_lens\": [7]}' | ");
  EXPECT_EQ(piped.status, 0) << piped.output;
  EXPECT_THAT(piped.output, HasSubstr("1 requests, 7 tokens"));
}

TEST(Program, AReportIsAScenario) {
  const std::string path = temporary_path("report.json");
  const auto plan = [](const std::string& flags) { return run_program("plan --json - " + flags); };
  for (const char* flags : {"--seq-lens 9,70 --q-len 2 --kv-dtype fp8 --seed 3", "--batch 0",
                            "--phase prefill --context-lens 5,8 --new-tokens 3 --workspace 512"}) {
    const Outcome report = plan(flags);
    ASSERT_EQ(report.status, 0) << report.output;
    std::ofstream(path) << report.output;
    EXPECT_EQ(plan("--scenario " + path).output, report.output);
  }
  unlink(path.c_str());
}

// Every measured value and message, those of ranks that wait for others among them.
TEST(Program, TwoReportsOfFaultsDifferInSecondsAlone) {
  const auto report = [] {
    auto json = nlohmann::ordered_json::parse(run_program("faults --json -").output);
    json.erase("seconds");
    return json.dump(1);
  };
  EXPECT_EQ(report(), report());
}

TEST(Program, OnlyRestrictsTheSmallestFaultsToo) {
  const Outcome one = run_program("faults --smallest --only 'LSE offset' --json -");
  ASSERT_EQ(one.status, 0) << one.output;
  const auto json = nlohmann::json::parse(one.output);
  EXPECT_EQ(json.at("faults").size(), 0U);
  EXPECT_EQ(json.at("smallest").size(), 3U);  // S = 128, 8192, 131072
  EXPECT_THAT(run_program("faults --smallest --only 'LSE offset'").output,
              ContainsRegex("\nPASS: no fault of the catalogue was tried, the smallest of one kind "
                            "alone; [0-9.]+ s\n$"));
  const Outcome other = run_program("faults --smallest --only absorb-one-percent");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("only = 'absorb-one-percent': no kind that --smallest tries; "
                                      "use one of 'output scale error', 'logit scale error'"));
}

TEST(Program, AFileWithoutAnEndIsRefused) {
  for (const char* arguments : {"run --scenario ", "run --lengths ", "metadata --from "}) {
    const Outcome outcome = run_program(arguments + std::string("/dev/zero"), "timeout 60 ");
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("'/dev/zero' is longer than 268435456 bytes"));
  }
}

// What a report says of the lengths of its phase no flag could unset.
TEST(Program, AReportOfAnotherPhaseIsAScenario) {
  const std::string path = temporary_path("report.json");
  const auto save = [&](const std::string& flags) {
    std::ofstream(path)
        << run_program("run --model tiny --tp 2 --dcp 2 --heads 2 " + flags + " --json -").output;
  };
  const auto plan = [&](const std::string& flags) {
    const Outcome outcome = run_program("plan --scenario " + path + " --json - " + flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.output).at("scenario")
                               : nlohmann::json::object();
  };
  save("--phase prefill --context-lens 5,8 --new-tokens 3,4 --workspace 128 --audit 1 --seed 3");
  auto scenario = plan("--phase decode");
  EXPECT_EQ(scenario.at("seq_lens").size(), 8U);  // of the trace, picked by the report's seed
  EXPECT_EQ(scenario.at("seed"), 3);
  scenario = plan("--phase decode --seq-lens 9,70");
  EXPECT_EQ(scenario.at("seq_lens"), (std::vector<int>{9, 70}));
  EXPECT_EQ(plan("").at("context_lens"), (std::vector<int>{5, 8}));

  save("--seq-lens 9,70 --q-len 2");
  EXPECT_EQ(plan("--phase prefill").at("context_lens").size(), 8U);
  scenario = plan("--phase prefill --context-lens 5,8 --new-tokens 3");
  EXPECT_EQ(scenario.at("context_lens"), (std::vector<int>{5, 8}));
  EXPECT_EQ(scenario.at("new_tokens"), (std::vector<int>{3, 3}));

  save("--seq-lens 9,70");  // a seed of 0 is none: the trace's first rows, not a pick
  EXPECT_EQ(plan("--phase prefill").at("context_lens"),
            nlohmann::json::parse(run_program("plan --phase prefill --json -").output)
                .at("scenario")
                .at("context_lens"));

  save("--phase both --seq-lens 20,90 --new-tokens 3,4");
  EXPECT_EQ(plan("--phase decode").at("seq_lens"), (std::vector<int>{20, 90}));
  EXPECT_EQ(plan("--phase prefill").at("new_tokens"), (std::vector<int>(8, 64)));

  save(
      "--seq-lens 9,70 --q-len 2 --query quantized --q-scale 0.25 --combine a2a --replicate-query");
  scenario = plan("--phase prefill");
  EXPECT_EQ(scenario.at("q_scale"), 1.0);
  EXPECT_EQ(scenario.at("combine"), "ag_rs");
  EXPECT_EQ(run_program("plan --phase prefill --combine a2a --scenario " + path).status, 2);

  std::ofstream(path) << R"({"context_lens": [5, 8], "new_tokens": [3, 4]})";  // of no phase
  EXPECT_EQ(plan("--phase prefill").at("new_tokens"), (std::vector<int>{3, 4}));
  unlink(path.c_str());
}

// What the first run filled in follows the flags of the second; what it was given stays.
TEST(Program, DefaultsOfAReportFollowOtherFlags) {
  const std::string path = temporary_path("report.json");
  const auto save = [&](const std::string& flags) {
    std::ofstream(path) << run_program("plan --json - --phase prefill " + flags).output;
  };
  const auto plan = [&](const std::string& flags) {
    return run_program("plan --scenario " + path + " --json - " + flags);
  };
  const auto scenario = [&](const std::string& flags) {
    const Outcome outcome = plan(flags);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.output).at("scenario")
                               : nlohmann::json::object();
  };
  save("--context-lens 40,90 --tp 2 --dcp 2 --heads 18 --model tiny");
  EXPECT_EQ(scenario("--context-lens 1,2,3").at("new_tokens"), (std::vector<int>(3, 64)));
  const std::string trace = "--lengths tests/data/azure_llm_code.csv --batch 3";
  EXPECT_EQ(scenario(trace).at("new_tokens"), (std::vector<int>(3, 64)));
  EXPECT_EQ(scenario("--tp 3 --dcp 3").at("workspace"), 4224);  // 22 times lcm(64, 3)
  save("--context-lens 40,90 --new-tokens 3");
  EXPECT_EQ(scenario("--context-lens 1,2,3").at("new_tokens"), (std::vector<int>(3, 3)));
  save("--context-lens 40,90 --new-tokens 3,4 --workspace 512");
  EXPECT_EQ(scenario("--context-lens 1,2").at("new_tokens"), (std::vector<int>{3, 4}));
  EXPECT_EQ(scenario("--tp 4 --dcp 4").at("workspace"), 512);
  const Outcome other = plan("--context-lens 1,2,3");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("context_lens has 3 entries but new_tokens has 2: give one "
                                      "of each per request, or one of new_tokens for all"));
  unlink(path.c_str());
}

// Every process of a job would say the same: a launcher ends a job whose first process has failed.
TEST(Program, OfAJobsProcessesTheFirstComplains) {
  const std::string job = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=";
  const Outcome first = run_program("run --dcp 3", job + "0 ");
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.output, StartsWith("mladcp: tp = 8"));
  const Outcome ended = run_program("run --dcp 3", job + "1 timeout 0.2 ");
  EXPECT_EQ(ended.output, "");
}

TEST(Program, ALongRunSaysSoFirst) {
  EXPECT_THAT(run_program("run --seq-lens 100000000", "timeout 0.5 ").output,
              ContainsRegex("^mladcp: this takes minutes, perhaps [0-9]+; fewer --heads"));
}

TEST(Program, ProcessesThatDoNotMeetAreHintedAt) {
  const std::string job = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=";
  EXPECT_THAT(run_program(kSmall, job + "0 ").output,
              StartsWith("mladcp: each of 2 processes runs all ranks; with --collective mpi"));
  EXPECT_THAT(run_program(kSmall, job + "1 ").output, StartsWith("mladcp run: "));
}

// A file that is missing on its node alone.
TEST(Program, ALaterProcessOfAJobThatIsNotEndedComplainsToo) {
  const Outcome second = run_program("run --scenario /nowhere/x.json",
                                     "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 ");
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.output, StartsWith("mladcp: process 1: '/nowhere/x.json'"));
}

TEST(Program, WhatCannotRunHereExitsThreeWithARemedy) {
  const BadInput inputs[] = {
      {"run --collective nccl", "use --device cuda"},
      {"run --device cuda --collective mpi", "use --device cpu"},
  };
  expect_refused(inputs, 3);
}

TEST(Program, HelpExitsZero) {
  EXPECT_EQ(run_program("--help").status, 0);
  EXPECT_EQ(run_program("run --help").status, 0);
  const Outcome version = run_program("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.output, ContainsRegex("^mladcp [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
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
