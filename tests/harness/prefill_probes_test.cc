// Every probe sees, in a chunked prefill, the kind of fault it is for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "harness/naive_prefill.h"
#include "tests/harness/catalogue_run.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

constexpr int kRank = 1;

// The first check of `probe` that fails under functions injected on rank 1, in the catalogue's
// prefill.
Check failure_under(const OpFunctions& functions, const std::string& probe) {
  Scenario scenario = prefill_fault_scenario();
  scenario.probes = {probe};
  const OpFault fault(kRank, functions);
  const Report report = run_scenario(scenario, &fault, [](double, std::string_view) {});
  for (const Check& check : report.checks) {
    if (check.status == CheckStatus::kFail) return check;
  }
  return {};
}

TEST(PrefillProbes, SeeFaultsOfTheCatalogue) {
  struct Seen {
    const char* probe;
    const char* fault;
    const char* stage;
  };
  for (const Seen& seen : {
           Seen{"constant", "prefill-output-three-percent", "output"},
           Seen{"constant", "context-keys-doubled", "context attention"},
           Seen{"sink", "context-p-in-e4m3", "context attention"},
           Seen{"shifted", "running-result-in-bf16", "merge"},
           Seen{"scale", "gather-scaled-twice", "context attention"},
           Seen{"scale", "new-rows-through-the-cache", "causal"},
           Seen{"poison", "context-empty-unwritten", "context attention"},
       }) {
    SCOPED_TRACE(testing::Message() << seen.probe << ", " << seen.fault);
    const Check check = first_failure(seen.fault, seen.probe);
    EXPECT_EQ(check.stage, seen.stage) << check.message;
  }
}

TEST(PrefillProbes, ParitySeesWhatDependsOnWherePagesLie) {
  OpFunctions functions;
  functions.gather = [](CacheOps& next, const OpFunctions::Gather& call) {
    call.run(next);
    const Tensor table = copied_to_host(call.block_table, call.stream);
    const std::int32_t page = table.as<const std::int32_t>()[5 * table.shape()[1]];
    map_values(call.out, call.stream, [page](float x, std::int64_t) {
      return x * (1.0F + static_cast<float>(page) / 64.0F);
    });
  };
  const Check check = failure_under(functions, "parity");
  EXPECT_EQ(check.stage, "context attention");
  EXPECT_THAT(check.message, HasSubstr("chunk"));
  EXPECT_EQ(failure_under(functions, "repeat").status, CheckStatus::kPass);
}

TEST(PrefillProbes, RepeatSeesARunThatIsNotLikeTheOther) {
  OpFunctions functions;
  functions.merge_into = [merges = std::make_shared<int>(0)](CombineOps& next,
                                                             const OpFunctions::MergeInto& call) {
    call.run(next);
    map_values(call.running.narrow(0, 0, 1), call.stream,
               [merge = (*merges)++](float x, std::int64_t) {
                 return x + 0x1p-10F * static_cast<float>(merge);
               });
  };
  EXPECT_EQ(failure_under(functions, "repeat").stage, "merge");
}

TEST(PrefillProbes, PoisonNamesAWritePastTheEnd) {
  OpFunctions functions;
  functions.round_to = [](CombineOps& next, const TensorView& out, const TensorView& value,
                          Stream stream) {
    next.round_to(out, value, stream);
    const std::uint16_t one = 0x3F80;
    out.device->copy_from_host(out.as<std::uint16_t>() + out.elements(), &one, sizeof(one), stream);
  };
  const Check check = failure_under(functions, "poison");
  EXPECT_EQ(check.stage, "poison");
  EXPECT_EQ(check.rank, kRank);
  // output [15, 3, 32] bf16
  EXPECT_THAT(check.message, HasSubstr("a tensor of 2880 bytes: byte 2880 (1 past its end)"));
}

}  // namespace
}  // namespace mladcp
