// The table of supported combinations: refusals name both sides, and the docs show the table.
#include "core/support_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

constexpr MlaDims kDeepSeek{};

TEST(SupportTable, RefusalNamesWhatWasAskedAndWhatIsOffered) {
  ParallelConfig config;
  config.page_size = 48;
  try {
    expect_supported("cuda", config, kDeepSeek, 1);
    ADD_FAILURE() << "accepted page 48";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("page 48"));
    EXPECT_THAT(error.what(), HasSubstr("page 16, 32, 64, 128"));
  }
  const MlaDims narrow{.latent = 64, .rope = 32};
  config.page_size = 64;
  EXPECT_THROW(expect_supported("cuda", config, narrow, 1), Unsupported);
  EXPECT_THROW(expect_supported("abacus", config, kDeepSeek, 1), Unsupported);
}

TEST(SupportTable, TheHostOffersEverythingValid) {
  for (const DType cache : {DType::kBF16, DType::kE4M3}) {
    for (const QueryForm query : {QueryForm::kAuto, QueryForm::kPair}) {
      ParallelConfig config;
      config.kv_dtype = cache;
      config.query = query;
      config.page_size = 7;
      EXPECT_NO_THROW(expect_supported("cpu", config, {.latent = 3, .rope = 5}, 9));
    }
  }
}

TEST(SupportTable, DocsShowTheTable) {
  std::ifstream file("docs/support.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(support_table_markdown()))
      << "docs/support.md is out of date; put this in:\n"
      << support_table_markdown();
}

}  // namespace
}  // namespace mladcp
