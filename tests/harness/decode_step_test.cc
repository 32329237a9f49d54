// Facts about whole steps that no single stage shows, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/backend.h"
#include "harness/decode_run.h"
#include "harness/problem.h"

namespace mladcp {
namespace {

Scenario scenario_of(std::int64_t n) {
  Scenario scenario;
  scenario.model = "tiny";
  scenario.parallel = {.heads = 3 * n, .tp = n, .dcp = n, .interleave = 2, .page_size = 16};
  scenario.timeout_s = 20.0;
  return scenario;
}

GroupOutcome run_step(const Scenario& scenario, const DecodeProblem& problem) {
  const auto backend = make_backend("cpu", "in_process", static_cast<int>(scenario.parallel.dcp),
                                    scenario.timeout_s);
  const PagedLayout layout = shuffled_layout(scenario.parallel.sharding(),
                                             scenario.parallel.page_size, problem.requests, 3);
  return run_decode_group(scenario, problem, layout, 0, *backend, nullptr);
}

DecodeProblem problem_of(const Scenario& scenario, const std::vector<StepRequest>& requests) {
  const ModelConfig model = scenario.model_config();
  return random_decode_problem(model.dims, model.softmax_scale(), scenario.parallel.heads, requests,
                               {.seed = 5}, 1);
}

// Fault 15: a captured batch has rows that mean nothing. NaN in their queries, wild table entries:
// the rows that do mean something keep their bits.
TEST(DecodeStep, PaddingRowsLeaveRealRowsAlone) {
  const Scenario scenario = scenario_of(2);
  const std::vector<StepRequest> real = {{16, 4}, {7, 4}, {1, 4}};
  std::vector<StepRequest> padded = real;
  padded.push_back({0, 4});
  const DecodeProblem plain = problem_of(scenario, real);
  DecodeProblem captured = problem_of(scenario, padded);
  const std::int64_t rows = captured.rows();
  for (const Tensor* tensor : {&captured.q_nope, &captured.q_rope}) {
    const std::int64_t width = tensor->view().elements() / rows;
    for (const std::int64_t row : {8, 9, 10, 12, 13, 14, 15}) {  // positions below 0
      std::fill_n(tensor->as<BFloat16>() + row * width, width, BFloat16::from_bits(0x7FFF));
    }
  }
  const GroupOutcome want = run_step(scenario, plain);
  const GroupOutcome got = run_step(scenario, captured);
  for (std::size_t r = 0; r < want.ranks.size(); ++r) {
    const TensorView& a = want.ranks[r].output;
    const TensorView& b = got.ranks[r].output;
    const std::int64_t row_bytes = a.bytes() / a.size(0);
    for (const std::int64_t row : {0, 1, 2, 3, 4, 5, 6, 7, 11}) {
      EXPECT_EQ(std::memcmp(a.as<char>() + row * row_bytes, b.as<char>() + row * row_bytes,
                            static_cast<std::size_t>(row_bytes)),
                0)
          << "rank " << r << ", row " << row;
    }
    EXPECT_EQ(got.ranks[r].plan.slots.back(), kNoSlot);
  }
}

// Fault 35: with one scale for all ranks, quantising before the gather and after it give equal
// bytes.
TEST(DecodeStep, QuantisingBeforeTheGatherEqualsQuantisingAfterIt) {
  Scenario quantised = scenario_of(4);
  quantised.parallel.q_scale = 0.1F;
  Scenario pair = quantised;
  pair.parallel.query = QueryForm::kPair;
  const DecodeProblem problem = problem_of(quantised, {{33, 1}, {5, 1}, {80, 1}});
  const GroupOutcome before = run_step(quantised, problem);
  const GroupOutcome after = run_step(pair, problem);
  for (std::size_t r = 0; r < before.ranks.size(); ++r) {
    const TensorView& codes = before.ranks[r].taps.at("all_gather.query.out");
    const TensorView& values = after.ranks[r].taps.at("all_gather.query.out");
    ASSERT_EQ(codes.elements(), values.elements());
    for (std::int64_t i = 0; i < codes.elements(); ++i) {
      const float x = values.as<const BFloat16>()[i].to_float();
      ASSERT_EQ(codes.as<const Float8E4M3>()[i].bits, Float8E4M3::from_float(x / 0.1F).bits)
          << "rank " << r << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace mladcp
