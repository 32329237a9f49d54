// The LSE of an e4m3 wgmma kernel is judged by the model of its tensor core, shard by shard.
#include "harness/bound_checks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/float8_e4m3.h"
#include "harness/backend.h"
#include "harness/fault_variations.h"
#include "harness/problem.h"
#include "reference/hopper_fp8.h"

namespace mladcp {
namespace {

Scenario uneven_scenario() {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = {.heads = 6, .tp = 3, .dcp = 3, .interleave = 2, .page_size = 16};
  scenario.seq_lens = {1, 5, 150, 0};
  scenario.q_len = 2;
  scenario.timeout_s = 20.0;
  return scenario;
}

// LSE [T, Hg] by the rule of the tensor core, one key after the other.
void set_device_lse(const OpFunctions::Decode& call, double offset) {
  const auto& query = std::get<TensorView>(call.query);
  const auto width = static_cast<std::size_t>(query.size(2));
  const double scale =
      double{call.scales.softmax_scale} * call.scales.q_scale * double{call.cache.scale};
  const std::int64_t page_size = call.cache.page_size();
  const auto* codes = call.cache.data.as<const Float8E4M3>();
  for (std::int64_t row = 0; row < query.size(0) * query.size(1); ++row) {
    const std::int64_t t = row / query.size(1);
    const std::int64_t h = row % query.size(1);
    const auto* row_codes =
        query.as<const Float8E4M3>() + t * query.strides[0] + h * query.strides[1];
    const auto* table =
        call.rows.block_table.as<const std::int32_t>() +
        call.rows.request.as<const std::int32_t>()[t] * call.rows.block_table.strides[0];
    double sum = 0.0;
    for (std::int64_t key = 0; key < call.rows.visible.as<const std::int32_t>()[t]; ++key) {
      const std::int64_t slot = table[key / page_size] * page_size + key % page_size;
      const std::span q(row_codes, width);
      const std::span k(codes + slot * query.size(2), width);
      sum += std::exp(scale * double{hopper_dot(q, k, 0.0F)});
    }
    call.lse.as<float>()[row] = static_cast<float>(std::log(sum) + offset);  // no key: -inf
  }
}

OpFault device_lse(double offset) {
  OpFunctions functions;
  functions.decode = [offset](AttentionOps& next, const OpFunctions::Decode& call) {
    call.run(next);
    set_device_lse(call, offset);
  };
  return {kEveryRank, functions};
}

// Failed checks of a step whose kernel is said to round as `profile`, by name.
std::vector<std::string> failures(const Variation* variation, const NumericsProfile& profile) {
  const Scenario scenario = uneven_scenario();
  const ModelConfig model = scenario.model_config();
  const DecodeProblem problem =
      random_decode_problem(model.dims, model.softmax_scale(), scenario.parallel.heads,
                            scenario.step_requests(), {.seed = 9}, 1);
  const auto backend = make_backend("cpu", "in_process", 3, scenario.timeout_s);
  const PagedLayout layout = shuffled_layout(scenario.parallel.sharding(),
                                             scenario.parallel.page_size, problem.requests, 3);
  const GroupOutcome outcome = run_decode_group(scenario, problem, layout, 0, *backend, variation);
  std::vector<std::string> failed;
  for (const Check& check : bounded_decode_checks(scenario, problem, outcome, profile, 1)) {
    if (check.status == CheckStatus::kFail) failed.push_back(check.name);
  }
  return failed;
}

using Names = std::vector<std::string>;
const Names kEveryShard(3, "LSE of the shard against the tensor core's");

TEST(DeviceLse, OfAKernelOnTheTensorCoreHolds) {
  const OpFault kernel = device_lse(0.0);
  for (const char* name : {"sm90_fp8", "sm90_fp8_f16", "flashmla_fp8"}) {
    EXPECT_EQ(failures(&kernel, profile_from_name(name)), Names{}) << name;
  }
}

TEST(DeviceLse, SeesWhatRoundingAnalysisExcuses) {
  const OpFault kernel = device_lse(1e-5);
  EXPECT_EQ(failures(&kernel, profiles::kSm90Fp8), kEveryShard);
  // fp32 logits are not those of the tensor core.
  EXPECT_EQ(failures(nullptr, profiles::kSm90Fp8), kEveryShard);
}

TEST(DeviceLse, IsNotAskedOfOtherUnits) {
  EXPECT_EQ(failures(nullptr, profiles::kCpu), Names{});
  EXPECT_EQ(failures(nullptr, profiles::kCudaGenericFp8), Names{});
}

}  // namespace
}  // namespace mladcp
