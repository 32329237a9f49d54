// A call dumped by somebody else's kernel: FlashMLA's FP8 decode, as it is and spoiled.
#include "harness/dump_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "harness/attention_dump.h"
#include "tests/harness/program.h"
#include "tests/support/temporary_path.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kNumerics = "flashmla_fp8";

std::string golden_path() { return test_data_path("golden/flashmla_fp8_a.safetensors"); }

// The golden after `spoil`, written to a file of this test's own.
std::string spoiled(const std::function<void(SafetensorsFile&)>& spoil) {
  SafetensorsFile file = read_safetensors(golden_path());
  spoil(file);
  std::string path = temporary_path("call.safetensors");
  std::vector<TensorView> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.push_back(tensor);
  write_safetensors(path, tensors, file.metadata);
  return path;
}

std::string refusal(const std::function<void(SafetensorsFile&)>& spoil) {
  const std::string path = spoiled(spoil);
  try {
    read_attention_dump(path);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

const Check* failure(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    if (check.status == CheckStatus::kFail) return &check;
  }
  return nullptr;
}

TEST(DumpChecks, AKernelsOwnCallPasses) {
  const std::vector<Check> checks = judge_dumps({golden_path(), golden_path()}, kNumerics, 2);
  EXPECT_TRUE(all_hold(checks)) << failure(checks)->message;
  ASSERT_EQ(checks.size(), 8U);  // output, LSE twice, empty rows; two ranks
  EXPECT_EQ(checks.back().rank, 1);
}

TEST(DumpChecks, OneWrongOutputIsNamed) {
  const std::string path = spoiled([](SafetensorsFile& file) {
    auto* out = file.tensors.at("out").as<BFloat16>();
    out[(2 * 16 + 3) * 512 + 7] = BFloat16::from_float(9.0F);
  });
  const std::vector<Check> checks = judge_dumps({golden_path(), path}, kNumerics, 2);
  const Check* wrong = failure(checks);
  ASSERT_NE(wrong, nullptr);
  EXPECT_EQ(wrong->rank, 1);
  EXPECT_EQ(wrong->stage, "attention");
  EXPECT_THAT(wrong->message, AllOf(HasSubstr("[2, 3, 7]"), HasSubstr("got 9")));
}

// The same call in other units: what is right stays right, what is wrong stays wrong.
TEST(DumpChecks, BoundsFollowTheScales) {
  for (const float unit : {0x1p-90F, 0x1p-70F, 0x1p70F, 0x1p90F}) {
    SCOPED_TRACE(unit);
    const auto in_units = [unit](float factor) {
      return spoiled([=](SafetensorsFile& file) {
        const auto scale = [&](const char* key, double by) {
          file.metadata[key] = fmt::format("{}", by * file.metadata_number(key));
        };
        scale("k_scale", unit);
        scale("q_scale", 1.0 / unit);
        auto* out = file.tensors.at("out").as<BFloat16>();
        for (std::int64_t i = 0; i < file.tensors.at("out").view().elements(); ++i) {
          out[i] = BFloat16::from_float(factor * unit * out[i].to_float());
        }
      });
    };
    const std::vector<Check> right = judge_dumps({in_units(1.0F)}, kNumerics, 2);
    EXPECT_TRUE(all_hold(right)) << failure(right)->message;
    EXPECT_FALSE(all_hold(judge_dumps({in_units(1.25F)}, kNumerics, 2)));
  }
}

// An LSE in base 2, as some kernels return it, is no natural one.
TEST(DumpChecks, ABaseTwoLseFails) {
  const std::string path = spoiled([](SafetensorsFile& file) {
    const Tensor& lse = file.tensors.at("lse");
    for (std::int64_t i = 0; i < lse.view().elements(); ++i) lse.as<float>()[i] *= 1.442695F;
  });
  const std::vector<Check> checks = judge_dumps({path}, kNumerics, 2);
  ASSERT_NE(failure(checks), nullptr);
  EXPECT_EQ(failure(checks)->name, "LSE against fp64");
}

TEST(DumpChecks, AnEmptyRowMayCarryEitherInfinityAndNothingElse) {
  const auto with_empty_request = [](float mark) {
    return [mark](SafetensorsFile& file) {
      file.tensors.at("seq_lens").as<std::int32_t>()[1] = 0;
      for (int h = 0; h < 16; ++h) {
        file.tensors.at("lse").as<float>()[16 + h] = mark;
        for (int d = 0; d < 512; ++d) {
          file.tensors.at("out").as<BFloat16>()[(16 + h) * 512 + d] = BFloat16::from_float(0.0F);
        }
      }
    };
  };
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(all_hold(judge_dumps({spoiled(with_empty_request(inf))}, kNumerics, 2)));
  EXPECT_TRUE(all_hold(judge_dumps({spoiled(with_empty_request(-inf))}, kNumerics, 2)));
  EXPECT_FALSE(all_hold(judge_dumps({spoiled(with_empty_request(0.0F))}, kNumerics, 2)));
}

// A scale that alone is in range may be what is too much.
TEST(DumpChecks, ScalesAreNamedWhereNoBoundIsFinite) {
  const std::string path =
      spoiled([](SafetensorsFile& file) { file.metadata["k_scale"] = "1.26e30"; });
  EXPECT_THAT([&] { judge_dumps({path}, kNumerics, 2); },
              testing::ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("no bound is finite"), HasSubstr("k_scale 1.26e+30"))));
}

TEST(DumpChecks, RefusalsNameFileFieldAndValue) {
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.tensors.erase("lse"); }),
              AllOf(HasSubstr(".safetensors"), HasSubstr("\"lse\"")));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors.at("block_table").as<std::int32_t>()[0] = 32;
              }),
              HasSubstr("block_table[0, 0] is page 32, kv_cache has pages 0..31"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors.at("seq_lens").as<std::int32_t>()[5] = 1025;
              }),
              HasSubstr("seq_lens[5] is 1025, must be in 0..1024"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors.at("seq_lens").as<std::int32_t>()[2] = -1;
              }),
              HasSubstr("seq_lens[2] is -1"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.metadata["k_scale"] = "0"; }),
              HasSubstr("metadata k_scale is 0, must be from 2^-100 to 2^100"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.metadata["q_scale"] = "1e-38"; }),
              HasSubstr("metadata q_scale is 1e-38, must be from 2^-100 to 2^100"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.metadata["softmax_scale"] = "2e30"; }),
              HasSubstr("metadata softmax_scale is 2e+30, must be from 2^-100 to 2^100"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.metadata.erase("softmax_scale"); }),
              HasSubstr("softmax_scale"));
  EXPECT_THAT(
      refusal([](SafetensorsFile& file) {
        file.tensors["kv_cache"] = Tensor(host_device(), DType::kF32, {32, 64, 1, 576}, "kv_cache");
      }),
      HasSubstr("must be e4m3 or bf16 of 4 axes"));
  EXPECT_THAT(
      refusal([](SafetensorsFile& file) {
        file.tensors["kv_cache"] = Tensor(host_device(), DType::kBF16, {32, 64, 576}, "kv_cache");
      }),
      HasSubstr("needs an e4m3 kv_cache"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors.at("q").as<Float8E4M3>()[577] = Float8E4M3::from_bits(0x7F);
              }),
              AllOf(HasSubstr("q e4m3"), HasSubstr("row 1: inputs must be finite")));
  EXPECT_THAT(refusal([](SafetensorsFile& file) { file.metadata["causal"] = "yes"; }),
              HasSubstr("metadata causal is 'yes', must be True or False"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors["out"] = Tensor(host_device(), DType::kI32, {6, 1, 16, 512}, "out");
              }),
              HasSubstr("must be bf16 or fp32 of 4 axes"));
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file.tensors["lse"] = Tensor(host_device(), DType::kF32, {6, 1, 15}, "lse");
              }),
              HasSubstr("must be [6, 1, 16]"));
}

// Two query rows a request, causal: FlashMLA's golden c. As if all rows saw all keys it fails.
TEST(DumpChecks, CausalRowsSeeTheirOwnLength) {
  const std::string golden = test_data_path("golden/flashmla_fp8_c.safetensors");
  EXPECT_TRUE(all_hold(judge_dumps({golden}, kNumerics, 2)));
  SafetensorsFile file = read_safetensors(golden);
  file.metadata["causal"] = "False";
  const std::string path = temporary_path("not_causal.safetensors");
  std::vector<TensorView> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.push_back(tensor);
  write_safetensors(path, tensors, file.metadata);
  EXPECT_FALSE(all_hold(judge_dumps({path}, kNumerics, 2)));
}

// Without a word on causality two rows a request could be judged either way, one without a choice.
TEST(DumpChecks, CausalMayBeLeftOutOfOneRowARequest) {
  EXPECT_EQ(refusal([](SafetensorsFile& file) { file.metadata.erase("causal"); }), "accepted");
  EXPECT_THAT(refusal([](SafetensorsFile& file) {
                file = read_safetensors(test_data_path("golden/flashmla_fp8_c.safetensors"));
                file.metadata.erase("causal");
              }),
              HasSubstr("metadata causal is missing and q has 2 tokens a request: add True"));
}

TEST(DumpChecks, AProfileOfOtherFormatsIsRefused) {
  for (const char* numerics : {"cuda_generic_bf16", "sm90_bf16"}) {
    const Outcome outcome = run_program("check " + golden_path() + " --numerics " + numerics);
    EXPECT_EQ(outcome.status, 2) << numerics << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(std::string("numerics ") + numerics + " is of bf16 in q, got q e4m3"));
  }
  // A bf16 query, and `name` in bf16, all zeros.
  const auto wide = [](const char* name) {
    return spoiled([name](SafetensorsFile& file) {
      for (const char* each : {"q", name}) {
        Tensor& tensor = file.tensors.at(each);
        tensor = Tensor(host_device(), DType::kBF16, tensor.shape(), each);
        std::fill_n(tensor.as<BFloat16>(), tensor.view().elements(), BFloat16());
      }
    });
  };
  for (const char* numerics : {"sm90_fp8", "sm90_fp8_f16", "flashmla_fp8"}) {
    EXPECT_THROW(judge_dumps({wide("q")}, numerics, 2), InvalidArgument) << numerics;
  }
  EXPECT_NO_THROW(judge_dumps({wide("q")}, "cuda_generic_fp8", 2));
  EXPECT_THROW(judge_dumps({wide("kv_cache")}, "cuda_generic_fp8", 2), InvalidArgument);
  EXPECT_NO_THROW(judge_dumps({wide("kv_cache")}, "cuda_generic_bf16", 2));
}

TEST(DumpChecks, ACacheWithAHeadAxisIsTheSame) {
  const std::string path = spoiled([](SafetensorsFile& file) {
    Tensor& cache = file.tensors.at("kv_cache");
    Tensor wider(host_device(), DType::kE4M3, {32, 64, 1, 576}, "kv_cache");
    host_device().copy(wider.view().data, cache.view().data,
                       static_cast<std::size_t>(cache.view().bytes()), {});
    cache = std::move(wider);
  });
  EXPECT_TRUE(all_hold(judge_dumps({path}, kNumerics, 2)));
}

// An fp32 output is not excused by a rounding to bf16 that it did not need.
TEST(DumpChecks, AnFp32OutputIsHeldToFp32) {
  const auto bound_of = [&](const std::vector<Check>& checks) { return checks.front().bound; };
  const std::string path = spoiled([](SafetensorsFile& file) {
    const Tensor& out = file.tensors.at("out");
    Tensor wide(host_device(), DType::kF32, out.shape(), "out");
    for (std::int64_t i = 0; i < out.view().elements(); ++i) {
      wide.as<float>()[i] = out.as<BFloat16>()[i].to_float();
    }
    file.tensors.at("out") = std::move(wide);
  });
  EXPECT_LT(bound_of(judge_dumps({path}, kNumerics, 2)),
            bound_of(judge_dumps({golden_path()}, kNumerics, 2)));
}

// Products that overflow leave no finite bound: a verdict would say nothing.
TEST(DumpChecks, InputsWithoutAFiniteBoundAreRefused) {
  const std::string path = spoiled([](SafetensorsFile& file) {
    for (const char* name : {"q", "kv_cache"}) {
      Tensor& tensor = file.tensors.at(name);
      Tensor huge(host_device(), DType::kBF16, tensor.shape(), tensor.view().name);
      for (std::int64_t i = 0; i < huge.view().elements(); ++i) {
        huge.as<BFloat16>()[i] = BFloat16::from_bits(0x7F7F);
      }
      tensor = std::move(huge);
    }
  });
  EXPECT_THROW(judge_dumps({path}, "", 2), InvalidArgument);
}

TEST(DumpChecks, ThroughTheProgram) {
  const Outcome clean = run_program("check " + golden_path() + " --numerics flashmla_fp8 --json -");
  ASSERT_EQ(clean.status, 0) << clean.output;
  const auto json = nlohmann::json::parse(clean.output);
  EXPECT_EQ(json.at("schema"), "mladcp.check/1");
  EXPECT_EQ(json.at("verdict"), "pass");
  EXPECT_EQ(json.at("checks").size(), 4U);

  const std::string path =
      spoiled([](SafetensorsFile& file) { file.tensors.at("lse").as<float>()[5] += 0.125F; });
  const Outcome wrong = run_program("check " + path + " --numerics flashmla_fp8");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.output, testing::StartsWith("FAIL stage attention, rank 0"));
  EXPECT_THAT(wrong.output, HasSubstr("lse fp32"));
  EXPECT_EQ(run_program("check").status, 2);
  EXPECT_EQ(run_program("check /no/such/file").status, 2);
  EXPECT_EQ(run_program("check " + golden_path() + " --numerics guess").status, 2);
}

}  // namespace
}  // namespace mladcp
