// No correct run exceeds its bound, and the bounds are not vacuous: small faults do.
#include "reference/error_bounds.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "reference/cpu_query_ops.h"
#include "reference/device_lse.h"
#include "tests/reference/fp8_kernel_model.h"
#include "tests/reference/oracle_problem.h"

namespace mladcp {
namespace {

// MLADCP_BOUND_PROBLEMS asks for more random problems than CI can afford.
std::int64_t problems_to_try(std::int64_t usual) {
  const char* asked = std::getenv("MLADCP_BOUND_PROBLEMS");
  return asked != nullptr ? std::atoll(asked) : usual;
}

AttentionProblemShape random_shape(Numbers& numbers, std::int64_t most_keys) {
  AttentionProblemShape shape;
  const auto pick = [&](auto... choices) {
    const std::array all{static_cast<double>(choices)...};
    return all[static_cast<std::size_t>(numbers.integer(0, all.size() - 1))];
  };
  shape.cache_dtype = numbers.integer(0, 3) == 0 ? DType::kBF16 : DType::kE4M3;
  const bool codes = shape.cache_dtype == DType::kE4M3 && numbers.integer(0, 1) == 0;
  shape.query_dtype = codes ? DType::kE4M3 : DType::kBF16;
  shape.heads = numbers.integer(1, 9);
  shape.latent = static_cast<std::int64_t>(pick(1, 7, 16, 40, 128, 200, 512));
  shape.rope = static_cast<std::int64_t>(pick(1, 5, 8, 64));
  shape.page = static_cast<std::int64_t>(pick(1, 4, 16, 64));
  shape.visible.clear();
  for (std::int64_t b = numbers.integer(1, 3); b > 0; --b) {
    const double keys = std::pow(static_cast<double>(most_keys), pick(0, 0.3, 0.6, 0.8, 1.0));
    const auto rows = numbers.integer(1, 3);
    shape.visible.emplace_back();
    for (std::int64_t j = 0; j < rows; ++j) {
      shape.visible.back().push_back(static_cast<std::int32_t>(keys) +
                                     static_cast<std::int32_t>(j));
    }
  }
  shape.sigma = static_cast<float>(pick(0.3, 1, 4));
  shape.latent_mean = shape.sigma * static_cast<float>(pick(0, 0.5, 2));
  const double spread = shape.sigma * shape.sigma * std::sqrt(static_cast<double>(shape.width()));
  shape.softmax_scale = static_cast<float>(pick(0.01, 0.5, 1, 3, 8) / spread);
  shape.q_scale = static_cast<float>(pick(1, 2, 0.1));
  shape.k_scale = static_cast<float>(pick(1, 3, 0.1));
  shape.softmax_scale /= codes ? shape.q_scale * shape.k_scale : 1.0F;
  shape.seed = static_cast<std::uint64_t>(numbers.integer(1, 1 << 30));
  return shape;
}

struct Worst {
  double out = 0.0, lse = 0.0;
  std::int64_t problems = 0;

  void add(const Comparison& of_out, const Comparison& of_lse) {
    out = std::fmax(out, of_out.worst_ratio);
    lse = std::fmax(lse, of_lse.worst_ratio);
    ++problems;
  }
  void print(const char* what) const {
    std::printf("%s: %lld problems, worst ratio to the bound: out %.3f, lse %.3f\n", what,
                static_cast<long long>(problems), out, lse);
  }
};

ExpectedAttention expected_of(const AttentionProblem& problem, const NumericsProfile& profile,
                              DType out) {
  CombineRounding rounding;
  rounding.partial = out;
  return expect_decode(oracle_problem(problem), profile, rounding, 2).per_set[0];
}

TEST(Bounds, NoCorrectRunOfTheHostExceedsThem) {
  Numbers numbers(20240607);
  Worst fp32, bf16;
  for (std::int64_t i = 0; i < problems_to_try(300); ++i) {
    const AttentionProblemShape shape = random_shape(numbers, 1500);
    const AttentionProblem problem = make_attention_problem(shape, numbers.integer(0, 9));
    const bool rounded = numbers.integer(0, 1) == 0;
    const DType dtype = rounded ? DType::kBF16 : DType::kF32;
    const DecodeResult result = run_decode(problem, 2, dtype);
    const ExpectedAttention expected = expected_of(problem, profiles::kCpu, dtype);
    const Comparison out = compare(result.out, expected.out);
    const Comparison lse = compare(result.lse, expected.lse);
    ASSERT_TRUE(out.pass()) << "problem " << i << " seed " << shape.seed << ": " << out;
    ASSERT_TRUE(lse.pass()) << "problem " << i << " seed " << shape.seed << ": " << lse;
    (rounded ? bf16 : fp32).add(out, lse);
  }
  bf16.print("host, bf16 out");
  fp32.print("host, fp32 out");
  EXPECT_GT(bf16.out, 0.9);
  EXPECT_GT(fp32.out, 0.05);
  EXPECT_GT(fp32.lse, 0.05);
}

TEST(Bounds, NoCorrectRunOfAnFp8KernelExceedsThem) {
  struct Kernel {
    const NumericsProfile* profile;
    Fp8KernelModel model;
  };
  for (const Kernel& kernel :
       {Kernel{&profiles::kFlashMlaFp8, {0, 0}}, Kernel{&profiles::kSm90Fp8, {7, 64}}}) {
    Numbers numbers(7);
    Worst worst;
    for (std::int64_t i = 0; i < problems_to_try(60); ++i) {
      AttentionProblemShape shape = random_shape(numbers, 1000);
      shape.query_dtype = shape.cache_dtype = DType::kE4M3;
      const AttentionProblem problem = make_attention_problem(shape);
      const DecodeResult result = run_fp8_kernel_model(problem, kernel.model);
      const ExpectedAttention expected = expected_of(problem, *kernel.profile, DType::kBF16);
      const Comparison out = compare(result.out, expected.out);
      const Comparison lse = compare(result.lse, expected.lse);
      ASSERT_TRUE(out.pass()) << kernel.profile->name << " problem " << i << ": " << out;
      ASSERT_TRUE(lse.pass()) << kernel.profile->name << " problem " << i << ": " << lse;
      worst.add(out, lse);
    }
    worst.print(kernel.profile->name.data());
    EXPECT_GT(worst.out, 0.2);
    EXPECT_GT(worst.lse, 0.05);
  }
}

// Exponentials that fp32 cannot hold become 0 or stay near 2^-127, on the host by the lane they
// fall in. Where only such a key has a value, that is all of the output.
TEST(Bounds, AllowForExponentialsBelowTheSmallestNormal) {
  for (const float distance : {80.0F, 87.0F, 88.0F, 89.0F, 104.0F, 150.0F, 768.0F}) {
    SCOPED_TRACE(distance);
    AttentionProblemShape shape;
    shape.cache_dtype = DType::kBF16;
    shape.visible = {{9}};
    shape.softmax_scale = 1.0F;
    AttentionProblem problem = make_attention_problem(shape);
    const TensorView cache = problem.cache().data;
    for (std::int64_t k = 0; k < 9; ++k) {
      auto* key = problem.keys[0].as<BFloat16>() + k * shape.width();
      std::fill_n(key, shape.width(), BFloat16{});
      if (k == 0) continue;
      key[0] = BFloat16::from_float(1.0F);  // the only value in channel 0
      key[shape.latent] = BFloat16::from_float(-distance);
    }
    for (std::int64_t i = 0; i < problem.query.view().elements(); ++i) {
      const bool rope_0 = i % shape.width() == shape.latent;
      problem.query.as<BFloat16>()[i] = BFloat16::from_float(rope_0 ? 1.0F : 0.0F);
    }
    for (std::int64_t k = 0; k < 9; ++k) {
      copy_row(cache, offset_of(cache, problem.block_table.as<std::int32_t>()[0], k),
               problem.keys[0], offset_of(problem.keys[0].view(), k));
    }
    const Expected expected = expected_of(problem, profiles::kCpu, DType::kF32).out;
    const Comparison out = compare(run_decode(problem, 1, DType::kF32).out, expected);
    EXPECT_TRUE(out.pass()) << out;
    EXPECT_LT(expected.bound[0], std::fmax(1e-36, 1e-4 * expected.value[0]));
  }
}

// Whose squares, and those of whose errors, fp32 does not hold: P in bf16 errs by 2^-8, the
// output's rounding by as much again.
TEST(Bounds, AllowForRoundingsOfSmallWeights) {
  for (const double distance : {1.0, 40.0, 60.0, 80.0}) {
    SCOPED_TRACE(distance);
    const Tensor query(host_device(), DType::kF32, {1, 1, 2}, "query");
    const Tensor keys(host_device(), DType::kF32, {2, 2}, "keys");
    query.as<float>()[0] = 0.0F;
    query.as<float>()[1] = 1.0F;
    for (const int i : {0, 1}) keys.as<float>()[i] = 0.0F;  // the heavy key, without a value
    keys.as<float>()[2] = 1.0F;
    keys.as<float>()[3] = static_cast<float>(-distance);
    OracleProblem problem;
    problem.query = query;
    problem.keys = {keys};
    problem.request = {0};
    problem.visible = {2};
    problem.latent = 1;
    const Expected out = expect_decode(problem, profiles::kCudaGenericBf16, {}, 1).per_set[0].out;
    EXPECT_GT(out.bound[0], 2.4 * 0x1p-8 * out.value[0]);
    EXPECT_LT(out.bound[0], 3.5 * 0x1p-8 * out.value[0]);
  }
}

// Logits closer together than the codes of P: roundings have one sign, and follow the logits, which
// the values are part of. 16,000 of them do not average out.
TEST(Bounds, AllowForRoundingsOfNarrowLogitsThatGoTogether) {
  double worst = 0.0;
  for (const double width : {0.003, 0.01, 0.02, 0.05, 0.1, 1.0}) {
    for (const float mean : {0.0F, 2.0F}) {
      SCOPED_TRACE(testing::Message() << "logits " << width << " wide, mean " << mean);
      AttentionProblemShape shape;
      shape.query_dtype = shape.cache_dtype = DType::kE4M3;
      shape.latent = 7;
      shape.rope = 8;
      shape.page = 64;
      shape.visible = {{16000}};
      shape.latent_mean = mean;
      shape.softmax_scale = static_cast<float>(width / std::sqrt(15.0));
      const AttentionProblem problem = make_attention_problem(shape);
      const Expected expected = expected_of(problem, profiles::kSm90Fp8, DType::kBF16).out;
      const Comparison out = compare(run_fp8_kernel_model(problem, {7, 64}).out, expected);
      EXPECT_TRUE(out.pass()) << out;
      EXPECT_GT(out.worst_ratio, 0.02) << out;
      worst = std::fmax(worst, out.worst_ratio);
    }
  }
  EXPECT_GT(worst, 0.2);
}

// Scale, sums and weights of head products.
TEST(Bounds, NoCorrectHeadProductExceedsThem) {
  Numbers numbers(3);
  double worst = 0.0;
  for (std::int64_t i = 0; i < problems_to_try(100); ++i) {
    const std::int64_t rows = numbers.integer(1, 4), heads = numbers.integer(1, 3);
    const std::int64_t terms = numbers.integer(1, 600), width = numbers.integer(1, 70);
    const DType out_dtype = i % 2 == 0 ? DType::kF32 : DType::kBF16;
    const Tensor in = random_tensor(DType::kBF16, {rows, heads, terms}, "in", numbers);
    const Tensor weight = random_tensor(DType::kBF16, {heads, terms, width}, "w", numbers, 0.1F);
    const Tensor out = host_tensor(out_dtype, {rows, heads, width}, "product");
    CpuQueryOps(2).project_value(out, in, weight, kHostStream);
    const Expected expected =
        expect_products(multiply_heads_exactly(in, weight, 1), out_dtype, profiles::kCpu.products);
    const Comparison result = compare(out, expected);
    ASSERT_TRUE(result.pass()) << "problem " << i << ": " << result;
    if (out_dtype == DType::kF32) worst = std::fmax(worst, result.worst_ratio);
  }
  std::printf("head products, fp32 out: worst ratio %.3f\n", worst);
  EXPECT_GT(worst, 0.05);
}

AttentionProblemShape deepseek(std::int32_t keys) {
  AttentionProblemShape shape;
  shape.query_dtype = shape.cache_dtype = DType::kE4M3;
  shape.heads = 4;
  shape.latent = 512;
  shape.rope = 64;
  shape.page = 64;
  shape.visible = {{keys}};
  shape.latent_mean = 0.0F;
  shape.softmax_scale = 2.0F / 24.0F;
  return shape;
}

// The smallest relative error of the whole output, as a scale would make it, that is seen.
double smallest_scale_error_seen(const DecodeResult& result, const Expected& expected) {
  const std::vector<float> values = values_of(result.out);
  for (double error = 1e-6; error < 1.0; error *= 1.25) {
    const DType dtype = result.out.view().dtype;
    const Tensor scaled = filled(dtype, result.out.shape(), "scaled", [&](std::int64_t i) {
      return values[static_cast<std::size_t>(i)] * (1.0 + error);
    });
    if (!compare(scaled, expected).pass()) return error;
  }
  return 1.0;
}

TEST(Bounds, SeeSmallErrorsOfScaleLseAndLength) {
  for (const std::int32_t keys : {128, 8192}) {
    const AttentionProblem problem = make_attention_problem(deepseek(keys));
    const ExpectedAttention bf16 = expected_of(problem, profiles::kCpu, DType::kBF16);
    const ExpectedAttention fp32 = expected_of(problem, profiles::kCpu, DType::kF32);
    const double of_bf16 = smallest_scale_error_seen(run_decode(problem), bf16.out);
    const double of_fp32 = smallest_scale_error_seen(run_decode(problem, 1, DType::kF32), fp32.out);
    double lse_offset = 0.0;
    for (const double bound : bf16.lse.bound) lse_offset = std::fmax(lse_offset, bound);
    std::printf("%d keys: smallest scale error seen %.1e (bf16), %.1e (fp32); LSE offset %.1e\n",
                keys, of_bf16, of_fp32, lse_offset);
    EXPECT_LT(of_bf16, 1e-2);
    EXPECT_LT(of_fp32, 1e-3);
    EXPECT_LT(lse_offset, 1e-4);
    // Keys missing at the end. (Which single key is missing only the census can tell.)
    std::int32_t missing = 1;
    for (; missing < keys; missing *= 2) {
      problem.visible.as<std::int32_t>()[0] = keys - missing;
      const DecodeResult shorter = run_decode(problem);
      if (!compare(shorter.lse, bf16.lse).pass()) break;
    }
    std::printf("%d keys: smallest number of missing keys seen %d\n", keys, missing);
    EXPECT_LE(missing, keys / 64);
  }
}

TEST(Bounds, SeeSwappedHeads) {
  const AttentionProblem problem = make_attention_problem(deepseek(8192));
  const DecodeResult result = run_decode(problem);
  const ExpectedAttention expected = expected_of(problem, profiles::kCpu, DType::kBF16);
  const Tensor first = copied_to_host(result.out.view().select(1, 0), kHostStream);
  host_device().copy_strided(result.out.view().select(1, 0), result.out.view().select(1, 1),
                             kHostStream);
  host_device().copy_strided(result.out.view().select(1, 1), first, kHostStream);
  EXPECT_FALSE(compare(result.out, expected.out).pass());
}

// The shards' LSE by the model of the tensor core, key by key.
TEST(DeviceLse, OfASetCountsItsOwnVisibleKeys) {
  AttentionProblemShape shape;
  shape.query_dtype = shape.cache_dtype = DType::kE4M3;
  shape.heads = 17;  // one more than a block of heads
  shape.latent = 88;
  shape.visible = {{70, 71}, {0}, {2}};
  shape.q_scale = 0.5F;
  shape.k_scale = 3.0F;
  const AttentionProblem decode = make_attention_problem(shape);
  OracleProblem problem = oracle_problem(decode);
  problem.sets = 3;
  for (const TensorView& keys : problem.keys) {
    problem.owner.push_back(owners_by_counting(keys.size(0), problem.sets, 4));
  }
  const auto width = static_cast<std::size_t>(shape.width());
  const double scale = shape.softmax_scale * shape.q_scale * shape.k_scale;
  for (std::int64_t set = 0; set < problem.sets; ++set) {
    const Expected expected = expect_device_lse(problem, profiles::kFlashMlaFp8, set, 2);
    for (std::int64_t row = 0; row < decode.rows() * shape.heads; ++row) {
      const auto t = static_cast<std::size_t>(row / shape.heads);
      const auto b = static_cast<std::size_t>(problem.request[t]);
      double sum = 0.0;
      for (std::int64_t p = 0; p < problem.visible[t]; ++p) {
        if (problem.owner[b][static_cast<std::size_t>(p)] != set) continue;
        const float dot =
            hopper_dot({problem.query.as<const Float8E4M3>() + row * shape.width(), width},
                       {problem.keys[b].as<const Float8E4M3>() + p * shape.width(), width}, 0.0F);
        sum += std::exp(scale * dot);
      }
      const auto at = static_cast<std::size_t>(row);
      if (sum == 0.0) {
        EXPECT_EQ(expected.value[at], -INFINITY);
        EXPECT_EQ(expected.bound[at], 0.0);
      } else {
        EXPECT_NEAR(expected.value[at], std::log(sum), 1e-12);
        EXPECT_EQ(expected.bound[at], 2e-6 + 0x1p-22 * std::fabs(expected.value[at]));
      }
    }
  }
  EXPECT_THROW(expect_device_lse(problem, profiles::kFlashMlaFp8, 3, 1), InvalidArgument);
}

// All latents c, all logits equal: exactly c at any length. A reference must not lose small terms,
// and the model of one long e4m3 chain does.
TEST(LongChains, ConstantLatentsComeBackExactly) {
  for (const std::int32_t keys : {16384, 65536, 1048576}) {
    AttentionProblemShape shape;
    shape.query_dtype = shape.cache_dtype = DType::kE4M3;
    shape.heads = 1;
    shape.latent = 8;
    shape.rope = 8;
    shape.page = 64;
    shape.visible = {{keys}};
    const AttentionProblem problem = make_attention_problem(shape, 1);
    const TensorView rows = problem.cache().data;
    host_device().copy_strided(
        rows, filled(DType::kE4M3, rows.shape, "constant", [](auto) { return 1.125F; }),
        kHostStream);
    for (const float x : values_of(run_decode(problem).out)) ASSERT_EQ(x, 1.125F) << keys;
  }
}

TEST(LongChains, OneE4m3ChainLosesWhatItsPromotedTwinKeepsAndTheBoundTells) {
  AttentionProblemShape shape = deepseek(16384);
  shape.heads = 1;
  shape.latent = 32;
  shape.latent_mean = 2.0F;  // two sigma
  shape.softmax_scale = 0.01F;
  const AttentionProblem problem = make_attention_problem(shape, 1);
  const Expected expected = expected_of(problem, profiles::kSm90Fp8, DType::kBF16).out;
  const Comparison promoted = compare(run_fp8_kernel_model(problem, {7, 64}).out, expected);
  const Comparison one_chain = compare(run_fp8_kernel_model(problem, {7, 0}).out, expected);
  EXPECT_TRUE(promoted.pass()) << promoted;
  EXPECT_LT(promoted.relative_rms, 0.01);
  EXPECT_FALSE(one_chain.pass()) << one_chain;
  EXPECT_GT(one_chain.relative_rms, 0.05);
}

// One key 8 above the crowd: P at scale 1 flushes the crowd, P with an offset keeps it.
TEST(Sink, FlushedProbabilitiesAreSeenAndAnOffsetKeepsThem) {
  AttentionProblemShape shape = deepseek(8192);
  shape.heads = 1;
  shape.latent = 32;
  shape.latent_mean = 1.0F;
  shape.softmax_scale = 0.002F;
  AttentionProblem problem = make_attention_problem(shape, 1);
  // The first key repeats the query on the RoPE part, sized so that its logit is about 8.
  const std::vector<float> query = values_of(problem.query);
  double square = 0.0;
  for (std::int64_t d = shape.latent; d < shape.width(); ++d) square += query[d] * query[d];
  const double factor = 8.0 / shape.softmax_scale / square;
  for (std::int64_t d = 0; d < shape.width(); ++d) {
    problem.keys[0].as<Float8E4M3>()[d] =
        Float8E4M3::from_float(d < shape.latent ? 0.0F : static_cast<float>(factor * query[d]));
  }
  const TensorView cache = problem.cache().data;
  copy_row(cache, offset_of(cache, problem.block_table.as<std::int32_t>()[0], 0), problem.keys[0],
           0);

  const Expected fp8 = expected_of(problem, profiles::kSm90Fp8, DType::kBF16).out;
  const Comparison kept = compare(run_fp8_kernel_model(problem, {7, 64}).out, fp8);
  const Comparison flushed = compare(run_fp8_kernel_model(problem, {0, 64}).out, fp8);
  EXPECT_TRUE(kept.pass()) << kept;
  EXPECT_FALSE(flushed.pass()) << flushed;
  EXPECT_GT(flushed.relative_rms, 0.2);
  const Expected host = expected_of(problem, profiles::kCpu, DType::kBF16).out;
  const Comparison of_host = compare(run_decode(problem).out, host);
  EXPECT_TRUE(of_host.pass()) << of_host;
  std::printf("sink: e4m3 P with offset 7 %.2g off, at scale 1 %.2g off\n", kept.relative_rms,
              flushed.relative_rms);
}

TEST(Profiles, AreFoundByName) {
  EXPECT_EQ(profile_from_name("sm90_fp8").probability.offset, 7);
  try {
    profile_from_name("tpu");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("flashmla_fp8"), std::string::npos);
  }
}

// A walk of the Hopper kernels over equal weights beside a sink: each of four threads adds 4 keys
// of a group of 16 to its sum at a time, and every addition rounds the same way.
float lse_of_a_walk(std::int64_t crowd, float sink_logit) {
  const float weight = std::exp2(-sink_logit * 1.44269504F);
  std::array<float, 4> sums = {1.0F, 0.0F, 0.0F, 0.0F};
  for (std::int64_t group = 0; group < crowd / 16; ++group) {
    for (float& sum : sums) sum += (weight + weight) + (weight + weight);
  }
  return std::log((sums[0] + sums[1]) + (sums[2] + sums[3])) + sink_logit;
}

TEST(Bounds, EqualWeightsRoundTheSameWayInOneSum) {
  constexpr std::int64_t kCrowd = 65536, kLatent = 4;
  const Tensor query = filled(DType::kBF16, {1, 1, kLatent + 1}, "query",
                              [](std::int64_t i) { return i == kLatent ? 1.0F : 0.0F; });
  const Tensor keys = filled(DType::kBF16, {kCrowd + 1, kLatent + 1}, "keys", [](std::int64_t i) {
    return i == kLatent ? 240.0F : i % 5 == 4 ? 0.0F : 1.0F;
  });
  OracleProblem problem;
  problem.query = query;
  problem.keys = {keys};
  problem.request = {0};
  problem.visible = {kCrowd + 1};
  problem.latent = kLatent;
  problem.softmax_scale = 1.0 / 24;
  const Tensor lse =
      filled(DType::kF32, {1, 1}, "lse", [](std::int64_t) { return lse_of_a_walk(kCrowd, 10.0F); });
  const auto against = [&](const NumericsProfile& profile) {
    return compare(lse, expect_decode(problem, profile, {}, 2).per_set[0].lse);
  };
  const Comparison one_sum = against(profiles::kSm90Bf16);
  EXPECT_TRUE(one_sum.pass()) << one_sum;
  EXPECT_GT(one_sum.worst_ratio, 0.1) << one_sum;
  // Independent roundings would not explain it.
  EXPECT_FALSE(against(profiles::kCudaGenericBf16).pass());
}

}  // namespace
}  // namespace mladcp
