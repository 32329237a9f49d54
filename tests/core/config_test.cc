// Every rule of core/config.h: refused with field, value and remedy, and not a step further.
#include "core/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

struct BadConfig {
  const char* rule;
  std::function<void(ParallelConfig&)> spoil;
  const char* message;
};

std::string message_of(const ParallelConfig& config) {
  try {
    validate(config);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ParallelConfig, DefaultsAreValid) { EXPECT_EQ(message_of({}), "accepted"); }

TEST(ParallelConfig, RefusesEveryBrokenRule) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<BadConfig> cases = {
      {"heads", [](auto& c) { c.heads = 0; }, "heads = 0: must be at least 1"},
      {"tp", [](auto& c) { c.tp = -8; }, "tp = -8: must be at least 1"},
      {"dcp", [](auto& c) { c.dcp = 0; }, "dcp = 0: must be at least 1"},
      {"interleave", [](auto& c) { c.interleave = 0; }, "interleave = 0: must be at least 1"},
      {"page_size", [](auto& c) { c.page_size = 0; }, "page_size = 0: must be at least 1"},
      {"groups", [](auto& c) { c.dcp = 3; }, "tp = 8: must be a multiple of dcp = 3"},
      {"more dcp than tp", [](auto& c) { c.dcp = 16; }, "tp = 8: must be a multiple of dcp = 16"},
      {"heads by rank", [](auto& c) { c.heads = 100; },
       "heads = 100: must be a multiple of tp = 8"},
      {"runs in a page", [](auto& c) { c.interleave = 48; },
       "page_size = 64: must be a multiple of interleave = 48"},
      {"run beyond a page", [](auto& c) { c.interleave = 128; },
       "page_size = 64: must be a multiple of interleave = 128"},
      {"q_scale zero", [](auto& c) { c.q_scale = 0.0F; },
       "q_scale = 0: must be from 2^-100 to 2^100"},
      {"k_scale negative", [](auto& c) { c.k_scale = -1e-9F; },
       "k_scale = -1e-09: must be from 2^-100 to 2^100"},
      {"k_scale infinite", [](auto& c) { c.k_scale = kInf; },
       "k_scale = inf: must be from 2^-100 to 2^100"},
      {"k_scale whose codes fp32 cannot hold", [](auto& c) { c.k_scale = 0x1.1p100F; },
       "k_scale = 1.34688e+30: must be from 2^-100 to 2^100"},
      {"k_scale that a sum of P makes subnormal", [](auto& c) { c.k_scale = 0x1.fp-101F; },
       "k_scale = 7.64209e-31: must be from 2^-100 to 2^100"},
      {"q_scale NaN", [](auto& c) { c.q_scale = std::nanf(""); },
       "q_scale = nan: must be from 2^-100 to 2^100"},
      {"kv_dtype", [](auto& c) { c.kv_dtype = DType::kF32; },
       "kv_dtype = fp32: must be bf16 or fp8 (e4m3)"},
      {"quantised query on bf16",
       [](auto& c) {
         c.kv_dtype = DType::kBF16;
         c.query = QueryForm::kQuantized;
       },
       "query = quantized: needs an FP8 cache but kv_dtype = bf16; use query pair or kv_dtype fp8"},
      {"reduce_dtype", [](auto& c) { c.reduce_dtype = DType::kE4M3; },
       "reduce_dtype = e4m3: must be bf16 or fp32"},
  };
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(bad.rule);
    ParallelConfig config;
    bad.spoil(config);
    EXPECT_EQ(message_of(config), bad.message);
  }
}

TEST(ParallelConfig, DerivedSizes) {
  ParallelConfig config;
  config.heads = 96;
  config.tp = 8;
  config.dcp = 4;
  config.interleave = 2;
  EXPECT_EQ(message_of(config), "accepted");
  EXPECT_EQ(config.local_heads(), 12);
  EXPECT_EQ(config.gathered_heads(), 48);
  EXPECT_EQ(config.groups(), 2);
  EXPECT_EQ(config.sharding().period(), 8);
}

TEST(ParallelConfig, AutomaticQueryFollowsTheCache) {
  ParallelConfig config;
  config.kv_dtype = DType::kE4M3;
  EXPECT_TRUE(config.quantized_query());
  config.kv_dtype = DType::kBF16;
  EXPECT_FALSE(config.quantized_query());
  config.kv_dtype = DType::kE4M3;
  config.query = QueryForm::kPair;
  EXPECT_FALSE(config.quantized_query());
  EXPECT_EQ(message_of(config), "accepted");
}

TEST(ParallelConfig, NamesReadBackAndUnknownOnesListTheKnown) {
  for (const QueryForm form : {QueryForm::kAuto, QueryForm::kPair, QueryForm::kQuantized}) {
    EXPECT_EQ(query_form_from_name(name(form)), form);
  }
  for (const Combine combine :
       {Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked}) {
    EXPECT_EQ(combine_from_name(name(combine)), combine);
  }
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3, DType::kI32,
                            DType::kI64, DType::kBytes}) {
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  }
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([] { combine_from_name("ring"); }),
            "combine = 'ring': use one of ag_rs, a2a, a2a_packed");
  EXPECT_EQ(message([] { query_form_from_name(""); }),
            "query = '': use one of auto, pair, quantized");
  EXPECT_NE(message([] { dtype_from_name("fp16"); }).find("'fp16' is unknown"), std::string::npos);
}

}  // namespace
}  // namespace mladcp
