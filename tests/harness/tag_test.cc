// Rows that say what they are, and what the tag probe says of rows in wrong places.
#include "harness/tag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "harness/fault_variations.h"
#include "tests/harness/catalogue_run.h"

namespace mladcp {
namespace {

using testing::EndsWith;

constexpr MlaDims kDims{.latent = 64, .rope = 32, .nope = 32, .value = 32};

Tensor rows_of(const std::vector<Tag>& latent, const std::vector<Tag>& rope) {
  const auto count = static_cast<std::int64_t>(latent.size());
  Tensor rows(host_device(), DType::kBF16, {count, kDims.row()}, "rows");
  for (std::int64_t i = 0; i < count * kDims.row(); ++i) {
    const std::int64_t d = i % kDims.row();
    const auto row = static_cast<std::size_t>(i / kDims.row());
    const int digit = d < kDims.latent ? latent[row].digit(d) : rope[row].digit(d - kDims.latent);
    set_value(rows, i, static_cast<float>(digit));
  }
  return rows;
}

TEST(Tag, RowsSayWhatTheyAre) {
  const std::vector<Tag> tags = {{0, 0, 0}, {7, 65'535, 0xFFFF'FFFF}, {3, 17, 1'000'003}};
  const Tensor rows = rows_of(tags, tags);
  const TagReader read(kDims, "rank", kDims.latent);
  EXPECT_EQ(read(rows, 0), "rank 0 request 0 position 0");
  EXPECT_EQ(read(rows, 1), "rank 7 request 65535 position 4294967295");
  EXPECT_EQ(read(rows, 2), "rank 3 request 17 position 1000003");
}

TEST(Tag, MixedAndUntaggedRowsSayThat) {
  const TagReader read(kDims, "rank", kDims.latent);
  const Tensor mixed = rows_of({{1, 2, 3}}, {{1, 2, 4}});
  EXPECT_EQ(read(mixed, 0),
            "latent of rank 1 request 2 position 3, RoPE part of rank 1 request 2 position 4");
  const Tensor dented = rows_of({{1, 2, 3}}, {{1, 2, 3}});
  set_value(dented, 40, 0.5F);
  EXPECT_EQ(read(dented, 0), "latent of no tag, RoPE part of rank 1 request 2 position 3");
  std::fill_n(dented.as<std::uint16_t>(), kDims.row(), std::uint16_t{0x7FFF});
  EXPECT_EQ(read(dented, 0), "no token");
}

TEST(TagProbe, NamesTheRowThatCameInsteadOfTheOneThatShould) {
  struct Case {
    const char* fault;
    const char* stage;
    const char* says;
  };
  // Ranks keep two positions each in turn. Contexts are 0, 3, 64, ...: the first row is request 1's
  // position 0, and its position 2 the first of rank 1; rank 0 goes on with request 2.
  for (const Case& c : {
           Case{"gather-one-row-late", "gather", "the row is rank 0 request 1 position 1"},
           Case{"exchange-blocks-rotated", "exchange", "the row is rank 1 request 1 position 2"},
           Case{"reorganise-by-rank", "reorganise", "the row is rank 0 request 2 position 0"},
           Case{"gather-row-tail-lost", "gather",
                "the row is latent of rank 0 request 1 position 0, RoPE part of no tag"},
           // Three heads a rank. The first row is a padded request's: its position is -1.
           Case{"gather-repeats-own", "query",
                "[0, 0]: got head 3 request 0 position 4294967295, wanted head 0 request 0 "
                "position 4294967295"},
           // New tokens 2, 63, 64, 126, 299 of requests 1 to 5, slots in reverse: 63 goes where 64
           // of the next request belongs, the first rank's.
           Case{"slot-of-another-request", "write",
                "got rank 3 request 2 position 63, wanted rank 0 request 3 position 64"},
       }) {
    SCOPED_TRACE(c.fault);
    const Check check = first_failure(c.fault, "tag");
    EXPECT_EQ(check.stage, c.stage);
    EXPECT_THAT(check.message, EndsWith(c.says));
  }
}

}  // namespace
}  // namespace mladcp
