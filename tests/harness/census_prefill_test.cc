// The census proved on chunked prefills: keys lost, doubled, masked or mixed up are flagged at the
// stage that did it, and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>

#include "harness/fault_variations.h"
#include "tests/harness/catalogue_run.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

struct Flagged {
  const char* fault;
  const char* stage;
  int rank;
  const char* says;

  friend std::ostream& operator<<(std::ostream& out, const Flagged& f) { return out << f.fault; }
};

TEST(CensusOfPrefill, FlagsEveryFaultOfKeysWhereItIs) {
  // A row that one rank gathers wrongly reaches all ranks: rank 0 is the first to see it, and the
  // key's keeper is the one to look at.
  const Flagged cases[] = {
      {"causal-sees-next-row", "causal", 2, "request 0, position 1 attended though not visible"},
      {"causal-misses-own-row", "causal", 0, "request 0, position 0 missed"},
      {"context-masked-causally", "context attention", 0, "missed"},
      {"context-first-key-lost", "context attention", 1, "request 1, position 0 missed"},
      {"context-keys-doubled", "context attention", 0, "attended 2.0"},
      {"context-edge-to-neighbour", "context attention", 1, "missed"},
      {"gather-first-page-again", "context attention", 0, "request 4, position 0 attended 2.0"},
      {"gather-starts-ignored", "context attention", 0, "kept by rank 3"},
      {"gather-token-to-seq-late", "context attention", 0, "NaN"},
      {"exchange-blocks-rotated", "context attention", 1, "kept by rank"},
      {"exchange-own-block-overwritten", "context attention", 2,
       "attended 2.00 times; kept by rank 1"},
      {"reorganise-by-rank", "context attention", 0, "missed"},
      {"reorganise-last-row-twice", "context attention", 0, "position 94 attended 2.0"},
      {"merge-twice", "merge", 0, "chunk 0, "},
      {"merge-left-out", "merge", 3, "chunk 1, "},
      {"merge-in-base-two", "merge", 1, "tensor running output"},
  };
  for (const Flagged& c : cases) {
    SCOPED_TRACE(c);
    const Check check = first_failure(c.fault, "census");
    EXPECT_EQ(check.stage, c.stage);
    EXPECT_EQ(check.rank, c.rank);
    EXPECT_THAT(check.message, HasSubstr(c.says));
  }
}

// Edits the cache before each gather reads it: row(k) is the k-th row of page 0 .. pages - 1.
OpFault edited_cache(std::function<void(const TensorView& cache)> edit) {
  OpFunctions functions;
  functions.gather = [edit = std::move(edit)](CacheOps& next, const OpFunctions::Gather& call) {
    const Tensor before = copied_to_host(call.cache.data, call.stream);
    edit_tensor(call.cache.data, call.stream, edit);
    call.run(next);
    edit_tensor(call.cache.data, call.stream, [&](const TensorView& host) {
      std::memcpy(host.data, before.view().data, static_cast<std::size_t>(host.bytes()));
    });
  };
  return {1, functions};
}

void expect_flagged(const Variation& variation, const char* says) {
  Scenario scenario = prefill_fault_scenario();
  scenario.probes = {"census"};
  const Report report = run_scenario(scenario, &variation, [](double, std::string_view) {});
  const auto failed = std::find_if(report.checks.begin(), report.checks.end(),
                                   [](const Check& c) { return c.status == CheckStatus::kFail; });
  ASSERT_NE(failed, report.checks.end());
  EXPECT_EQ(failed->stage, "context attention");
  EXPECT_THAT(failed->message, HasSubstr(says));
}

TEST(CensusOfPrefill, FlagsContentsMixedUpInTheCache) {
  const std::int64_t latent = prefill_fault_scenario().model_config().dims.latent;
  {
    SCOPED_TRACE("latent rows shifted against RoPE rows");
    expect_flagged(edited_cache([latent](const TensorView& cache) {
                     auto* bytes = cache.as<unsigned char>();
                     const std::int64_t width = cache.size(2);
                     for (std::int64_t row = cache.size(0) * cache.size(1) - 1; row > 0; --row) {
                       std::memcpy(bytes + row * width, bytes + (row - 1) * width,
                                   static_cast<std::size_t>(latent));
                     }
                   }),
                   "kept by rank 1");
  }
  {
    SCOPED_TRACE("two pages exchanged");
    expect_flagged(edited_cache([](const TensorView& cache) {
                     const Tensor first = copied_to_host(cache.narrow(0, 0, 1), {});
                     host_device().copy_strided(cache.narrow(0, 0, 1), cache.narrow(0, 1, 1), {});
                     host_device().copy_strided(cache.narrow(0, 1, 1), first, {});
                   }),
                   "kept by rank 1");
  }
}

// A rank attends for its own heads alone: what only one rank lost, only its heads can tell.
TEST(CensusOfPrefill, EveryRankAuditsEveryWindow) {
  for (int rank = 0; rank < 4; ++rank) {
    OpFunctions functions;
    functions.project_keys_values =
        [](QueryOps& next, const TensorView& key, const TensorView& value, const TensorView& rows,
           const TensorView& w_uk, const TensorView& w_uv, Stream stream) {
          next.project_keys_values(key, value, rows, w_uk, w_uv, stream);
          map_values(value.narrow(0, rows.size(0) - 1, 1), stream,
                     [](float, std::int64_t) { return 0.0F; });
        };
    Scenario scenario = prefill_fault_scenario();
    scenario.probes = {"census"};
    const OpFault fault(rank, functions);
    const Report report = run_scenario(scenario, &fault, [](double, std::string_view) {});
    double lost = 0.0;
    for (const Check& check : report.checks) {
      if (check.status != CheckStatus::kFail) continue;
      EXPECT_EQ(check.rank, rank) << check.message;
      if (check.stage == "context attention") lost += check.measured;
    }
    EXPECT_GE(lost, 5.0) << "rank " << rank;  // the last key of every chunk
  }
}

}  // namespace
}  // namespace mladcp
