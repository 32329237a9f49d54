#include "harness/lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "tests/support/temporary_path.h"

namespace mladcp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file in the test's own folder, gone afterwards.
class LengthsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    std::string path = folder_ + name;
    std::ofstream(path, std::ios::binary) << content;
    written_.push_back(path);
    return path;
  }
  ~LengthsTest() override {
    for (const std::string& path : written_) std::filesystem::remove(path);
  }

  static std::string message(const LengthsSource& source, std::int64_t batch) {
    try {
      read_lengths(source, batch);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no InvalidArgument";
  }

 private:
  std::string folder_ = temporary_path("");
  std::vector<std::string> written_;
};

TEST_F(LengthsTest, TakesTheFirstRowsOfTheKnownColumns) {
  const std::string azure = write("azure.csv",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                  "a,4808,10\r\nb,3180,8\r\n\r\nc,0,27\r\n");
  EXPECT_THAT(read_lengths({azure, ""}, 2), ElementsAre(4808, 3180));
  EXPECT_THAT(read_lengths({azure, ""}, 3), ElementsAre(4808, 3180, 0));
  EXPECT_THAT(read_lengths({azure, "GeneratedTokens"}, 2), ElementsAre(10, 8));
  const std::string mooncake =
      write("mooncake.csv", "timestamp_ms,input_tokens,output_tokens\n0,6758,500\n5,87169,402");
  EXPECT_THAT(read_lengths({mooncake, ""}, 2), ElementsAre(6758, 87169));
}

TEST_F(LengthsTest, AByteOrderMarkIsNoPartOfTheFirstColumn) {
  const std::string path = write("sheet.csv", "\xEF\xBB\xBFinput_tokens,b\r\n7,8\r\n");
  EXPECT_THAT(read_lengths({path, ""}, 1), ElementsAre(7));
}

TEST_F(LengthsTest, SeedPicksDistinctRowsRepeatably) {
  std::string csv = "input_tokens\n";
  for (int i = 0; i < 100; ++i) csv += std::to_string(i) + "\n";
  const std::string path = write("many.csv", csv);
  const auto first = read_lengths({path, ""}, 40, 7);
  EXPECT_EQ(first, read_lengths({path, ""}, 40, 7));
  EXPECT_NE(first, read_lengths({path, ""}, 40, 8));
  EXPECT_NE(first, read_lengths({path, ""}, 40));
  auto sorted = read_lengths({path, ""}, 100, 3);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, read_lengths({path, ""}, 100));
}

TEST_F(LengthsTest, SourceSplitsAtTheLastColonUnlessTheFileExists) {
  const std::string path = write("odd:name", "input_tokens\n3\n");
  EXPECT_EQ(parse_lengths_source(path).path, path);
  EXPECT_EQ(parse_lengths_source(path).column, "");
  EXPECT_EQ(parse_lengths_source(path + ":output_tokens").path, path);
  EXPECT_EQ(parse_lengths_source(path + ":output_tokens").column, "output_tokens");
  EXPECT_EQ(parse_lengths_source("missing.csv").path, "missing.csv");
  EXPECT_THROW(parse_lengths_source("missing.csv:"), InvalidArgument);
  EXPECT_THROW(parse_lengths_source(":input_tokens"), InvalidArgument);
}

TEST_F(LengthsTest, ErrorsNameFileLineAndColumn) {
  const std::string path = write("bad.csv", "a,input_tokens\n1,5\n2,x\n");
  EXPECT_THAT(read_lengths({path, ""}, 1), ElementsAre(5));
  EXPECT_THAT(message({path, ""}, 2),
              AllOf(HasSubstr("bad.csv:3"), HasSubstr("input_tokens"), HasSubstr("'x'")));
  const std::string header = "a,input_tokens\n";
  EXPECT_THAT(message({write("short.csv", header + "3\n"), ""}, 1),
              HasSubstr("short.csv:2: has 1 fields, the header 2"));
  EXPECT_THAT(message({write("long.csv", header + "3,4,\n"), ""}, 1),
              HasSubstr("long.csv:2: has 3 fields, the header 2"));
  EXPECT_THAT(message({write("twice.csv", "a,input_tokens,input_tokens\n1,2,3\n"), ""}, 1),
              HasSubstr("twice.csv:1: column input_tokens stands there twice; rename one"));
  EXPECT_THAT(message({write("quoted.csv", "\"input_tokens\",\"b\"\n1,2\n"), ""}, 1),
              HasSubstr("write it without quotes"));
  const std::string binary(
      "\x7f"
      "ELF\0\x1b[31m,\n1,2\n",
      16);
  EXPECT_THAT(message({write("binary.csv", binary), ""}, 1),
              HasSubstr(R"(the header has \x7fELF\x00\x1b[31m, ; give FILE:COLUMN)"));
  EXPECT_THAT(message({write("minus.csv", header + "3,-1\n"), ""}, 1), HasSubstr("'-1'"));
  EXPECT_THAT(message({write("big.csv", header + "3,2147483648\n"), ""}, 1),
              HasSubstr("'2147483648'"));
  EXPECT_THAT(message({write("half.csv", header + "3,5.5\n"), ""}, 1), HasSubstr("'5.5'"));
  EXPECT_THAT(
      message({path, "tokens"}, 1),
      AllOf(HasSubstr("bad.csv:1"), HasSubstr("no column tokens"), HasSubstr("a, input_tokens")));
  EXPECT_THAT(message({write("none.csv", "a,b\n1,2\n"), ""}, 1),
              HasSubstr("ContextTokens or input_tokens"));
  EXPECT_THAT(message({write("few.csv", header + "3,1\n"), ""}, 2),
              AllOf(HasSubstr("has 1 rows"), HasSubstr("asks for 2")));
  EXPECT_THAT(message({"/nowhere/at/all.csv", ""}, 2), HasSubstr("/nowhere/at/all.csv"));
  EXPECT_THAT(message({path, ""}, 0), HasSubstr("batch is 0"));
}

}  // namespace
}  // namespace mladcp
