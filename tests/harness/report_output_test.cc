// Where the program's reports go: files, links, open descriptors, pipes, full disks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/harness/program.h"
#include "tests/support/temporary_path.h"

namespace mladcp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string contents_of(const std::string& path) {
  std::stringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

TEST(ReportOutput, AReportThatCannotBeWrittenIsNoSuccess) {
  EXPECT_EQ(run_program("plan --seq-lens 3 >/dev/full").status, 3);  // both streams are full
}

TEST(ReportOutput, AFullDiskCostsTheFileAndNotTheScreen) {
  for (const std::string& arguments :
       {std::string(kSmall) + "--json", std::string("metadata --seq-lens 5 --svg")}) {
    const Outcome outcome = run_program(arguments + " /dev/full");
    EXPECT_EQ(outcome.status, 3) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("\nPASS"), HasSubstr("/dev/full cannot be written: "
                                                                     "No space left on device")));
  }
}

TEST(ReportOutput, AReportDoesNotTakeThePlaceOfAnInput) {
  const std::string path = temporary_path("input");
  const std::string text = "ContextTokens\n3\n5\n";
  const std::string output = " --json /." + path;
  for (const std::string& arguments :
       {"run --batch 2 --lengths " + path, "plan --batch 2 --lengths " + path + ":ContextTokens",
        "run --scenario " + path, "check " + path, "metadata --from " + path,
        "metadata --batch 2 --lengths " + path}) {
    std::ofstream(path) << text;
    const Outcome outcome = run_program(arguments + output);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("names elsewhere too: name another file"));
    EXPECT_EQ(contents_of(path), text) << arguments;
  }
  unlink(path.c_str());
}

TEST(ReportOutput, AReportCutShortLeavesWhatWasThere) {
  const std::string path = temporary_path("report.json");
  const std::string link = temporary_path("link.json");
  std::ofstream(path) << "an earlier report";
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  const auto first_line = [&] {
    std::string line;
    std::getline(std::ifstream(link), line);
    return line;
  };
  const std::string full = "ulimit -f 1; trap '' XFSZ; ";
  const Outcome outcome = run_program("plan --seq-lens 3,4,5,6 --json " + link, full);
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(link + " cannot be written: File too large"));
  EXPECT_EQ(first_line(), "an earlier report");
  EXPECT_EQ(run_program("plan --seq-lens 3 --json " + link).status, 0);
  EXPECT_EQ(first_line(), "{");  // through the link, which is still there
  unlink(path.c_str());          // now it leads nowhere
  EXPECT_EQ(run_program("plan --seq-lens 3 --json " + link).status, 0);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  EXPECT_EQ(run_program("metadata --seq-lens 3 --json /dev/null --svg /dev/null").status, 0);
  unlink(link.c_str());
  unlink(path.c_str());
}

// Opened by its path, the file behind a descriptor would lose what it holds.
TEST(ReportOutput, AReportToADescriptorFollowsWhatIsThere) {
  const std::string path = temporary_path("all");
  const std::string link = temporary_path("out");
  ASSERT_EQ(symlink("/dev/stdout", link.c_str()), 0);
  const std::string screen = run_program("plan --seq-lens 3").output;
  const std::string json = run_program("plan --seq-lens 3 --json -").output;
  const std::string all = "before\n" + screen + json;
  const std::string append = "exec >>" + path + "; ";
  for (const std::string& to : {std::string("/dev/stdout"), std::string("/dev/fd/1"), link}) {
    SCOPED_TRACE(to);
    const std::string arguments = "plan --seq-lens 3 --json " + to;
    EXPECT_EQ(run_program(arguments).output, screen + json);
    std::ofstream(path) << "before\n";
    EXPECT_EQ(run_program(arguments, append).status, 0);
    EXPECT_EQ(contents_of(path), all);
  }
  EXPECT_EQ(run_program("plan --seq-lens 3 --json /dev/fd/3 3>" + path).output, screen);
  EXPECT_EQ(contents_of(path), json);
  const Outcome closed = run_program("plan --seq-lens 3 --json /dev/fd/9");
  EXPECT_EQ(closed.status, 2);
  EXPECT_THAT(closed.output, HasSubstr("--json /dev/fd/9 cannot be written: "));
  const Outcome read_only = run_program("plan --seq-lens 3 --json /dev/fd/9 9<" + path);
  EXPECT_EQ(read_only.status, 2);  // before any work
  EXPECT_THAT(read_only.output, StartsWith("mladcp: --json /dev/fd/9 cannot be written: Bad file"));
  unlink(link.c_str());
  unlink(path.c_str());
}

// The reader is gone before the program starts: a shell writes to it until that fails.
TEST(ReportOutput, AClosedPipeEndsItAsItEndsOtherTools) {
  const auto status_under = [](const std::string& trap) {
    return run_program("plan --seq-lens 3; echo status $? >&3) | :; } 3>&1",
                       "{ (trap '' PIPE; while echo x; do :; done 2>/dev/null; " + trap)
        .output;
  };
  EXPECT_EQ(status_under("trap - PIPE; "), "status 141\n");
  EXPECT_EQ(status_under(""),
            "mladcp: could not run: standard output cannot be written\nstatus 3\n");
}

TEST(ReportOutput, AReportFileIsThereOnceThereIsAReport) {
  const std::string path = temporary_path("report.json");
  const auto lies_there = [&] { return access(path.c_str(), F_OK) == 0; };
  struct Refused {
    const char* arguments;
    const char* before;
    int status;
  };
  for (const Refused& refused :
       {Refused{"plan --phase both", "", 2}, Refused{"faults --only nothing", "", 2},
        Refused{"run --collective nccl", "", 3},
        Refused{"run --phase both", "timeout -s INT 0.3 ", 124}}) {
    const Outcome outcome = run_program(refused.arguments + (" --json " + path), refused.before);
    EXPECT_EQ(outcome.status, refused.status) << refused.arguments << outcome.output;
    EXPECT_FALSE(lies_there()) << refused.arguments;
  }
  std::ofstream(path) << "an earlier report";
  EXPECT_EQ(run_program("plan --phase both --json " + path).status, 2);
  std::string kept;
  std::getline(std::ifstream(path), kept);
  EXPECT_EQ(kept, "an earlier report");
  EXPECT_EQ(run_program("plan --seq-lens 3 --json " + path).status, 0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path)).at("schema"), "mladcp.plan/1");
  unlink(path.c_str());
  // The reader of a pipe takes its first closing for the end.
  const Outcome piped = run_program("plan --seq-lens 3 --json " + path + " >/dev/null",
                                    "mkfifo " + path + "; cat " + path + " & timeout 20 ");
  EXPECT_THAT(piped.output, HasSubstr("mladcp.plan/1"));
  unlink(path.c_str());
}

}  // namespace
}  // namespace mladcp
