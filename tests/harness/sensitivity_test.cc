// The smallest faults that docs/faults.md says are caught, are: the bounds do not hide them.
#include "harness/sensitivity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace mladcp {
namespace {

struct Published {
  std::string_view kind;
  std::int64_t length;
  double size;
};

constexpr Published kPublished[] = {
    {"output scale error", 128, 0x1p-8},
    {"logit scale error", 128, 0x1p-18},
    {"LSE offset", 128, 0x1p-17},
    {"keys dropped", 128, 1},
    {"pairs of heads swapped", 128, 1},
    {"visible length short by", 128, 1},
    {"P flushed below", 128, 0x1p-13},
    {"14-bit accumulator over", 8192, 256},
    {"absorbed query scaled", 128, 0x1p-8},
    {"weighted partial, bf16", 128, 0x1p-8},
    {"weighted partial, fp32", 128, 0x1p-20},
    {"sum of ag_rs, bf16", 128, 0x1p-8},
    {"sum of ag_rs, fp32", 128, 0x1p-22},
    {"merge of a2a", 128, 0x1p-8},
    {"merge of a2a_packed", 128, 0x1p-8},
    {"projection scaled", 128, 0x1p-8},
};

TEST(Sensitivity, SmallestFaultOfEveryKindIsCaughtAtItsStage) {
  const auto backend = make_backend("cpu", "in_process", 2, 60.0);
  for (const FaultKind& kind : fault_kinds()) {
    SCOPED_TRACE(kind.name);
    const auto* published =
        std::find_if(std::begin(kPublished), std::end(kPublished),
                     [&](const Published& entry) { return entry.kind == kind.name; });
    ASSERT_NE(published, std::end(kPublished)) << "docs/faults.md has no row of it";
    const Scenario scenario = sensitivity_scenario(kind, published->length);
    const Sensitivity found = smallest_caught(kind, published->length, scenario, *backend);
    EXPECT_GT(found.smallest, 0.0);
    EXPECT_LE(found.smallest, published->size);
  }
}

}  // namespace
}  // namespace mladcp
