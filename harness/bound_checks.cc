#include "harness/bound_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "core/lse_merge.h"
#include "harness/exact_checks.h"
#include "harness/rank_inputs.h"
#include "reference/device_lse.h"
#include "reference/error_bounds.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

struct Judged {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const GroupOutcome& outcome;
  const NumericsProfile& profile;
  int sum_roundings;
  int threads;

  const ParallelConfig& config() const { return scenario.parallel; }
  const TapStore& taps(std::size_t rank) const { return outcome.ranks[rank].taps; }
};

// The query every rank's attention saw, as one tensor [T, Hg, D].
Tensor query_as_seen(const TapStore& taps, const MlaDims& dims) {
  if (taps.has("attention.query")) return copied_to_host(taps.at("attention.query"), {});
  const TensorView& latent = taps.at("attention.query_latent");
  const TensorView& rope = taps.at("attention.query_rope");
  Tensor query(host_device(), DType::kBF16, {latent.size(0), latent.size(1), dims.row()}, "query");
  host_device().copy_strided(query.view().narrow(2, 0, dims.latent), latent, {});
  host_device().copy_strided(query.view().narrow(2, dims.latent, dims.rope), rope, {});
  return query;
}

struct OracleInputs {
  Tensor query;
  std::vector<Tensor> keys;
  OracleProblem problem;
};

OracleInputs oracle_inputs(const Judged& judged) {
  const ParallelConfig& config = judged.config();
  const DecodeProblem& problem = judged.problem;
  const MlaDims& dims = problem.dims;
  const bool fp8 = config.kv_dtype == DType::kE4M3;
  OracleInputs inputs;
  inputs.query = query_as_seen(judged.taps(0), dims);
  OracleProblem& oracle = inputs.problem;
  oracle.query = inputs.query;
  oracle.latent = dims.latent;
  oracle.softmax_scale = problem.softmax_scale;
  oracle.query_scale = config.quantized_query() ? config.q_scale : 1.0;
  oracle.key_scale = fp8 ? config.k_scale : 1.0;
  oracle.sets = config.dcp;
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    const TensorView rows = problem.kv.view().narrow(0, problem.kv_begin[b], request.length);
    inputs.keys.push_back(stored_rows(rows.narrow(1, 0, dims.latent),
                                      rows.narrow(1, dims.latent, dims.rope), config.kv_dtype,
                                      config.k_scale));
    oracle.keys.push_back(inputs.keys.back());
    oracle.owner.push_back(owners_by_counting(request.length, config.dcp, config.interleave));
    for (std::int64_t j = 0; j < request.q_len; ++j) {
      oracle.request.push_back(static_cast<std::int32_t>(b));
      oracle.visible.push_back(std::max<std::int64_t>(0, request.length - request.q_len + j + 1));
    }
  }
  return inputs;
}

// Rows of heads [first, first + count) of an Expected [T, Hg, X].
Expected heads_of(const Expected& all, std::int64_t first, std::int64_t count) {
  Expected part;
  part.shape = all.shape;
  part.shape[1] = count;
  const std::int64_t width = all.shape.rank() == 3 ? all.shape[2] : 1;
  for (std::int64_t t = 0; t < all.shape[0]; ++t) {
    const auto begin = (t * all.shape[1] + first) * width;
    const auto end = begin + count * width;
    part.value.insert(part.value.end(), all.value.begin() + begin, all.value.begin() + end);
    part.bound.insert(part.bound.end(), all.bound.begin() + begin, all.bound.begin() + end);
  }
  return part;
}

void check_products(const Judged& judged_step, std::vector<Check>& checks) {
  const ParallelConfig& config = judged_step.config();
  const DecodeProblem& problem = judged_step.problem;
  for (std::size_t r = 0; r < judged_step.outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const HeadRange own = local_heads(config, judged_step.outcome.group, rank);
    const HeadRange all = gathered_heads(config, judged_step.outcome.group);
    const HeadRange query = config.replicate_query ? all : own;
    const HeadRange value = config.project_before_merge ? all : own;
    const TapStore& taps = judged_step.taps(r);
    const auto expected = [&](const TensorView& in, const TensorView& weight) {
      return expect_products(multiply_heads_exactly(in, weight, judged_step.threads), DType::kBF16,
                             judged_step.profile.products);
    };
    checks.push_back(
        check_within("absorb", rank, "q_nope x W_UK against fp64", taps.at("absorb.out"),
                     expected(problem.q_nope.view().narrow(1, query.begin, query.count),
                              problem.w_uk.view().narrow(0, query.begin, query.count))));
    checks.push_back(check_within(
        "projected", rank, "latent x W_UV against fp64", taps.at("project.out"),
        expected(taps.at("project.in"), problem.w_uv.view().narrow(0, value.begin, value.count))));
  }
}

CombineRounding combine_rounding(const Judged& judged_step) {
  const ParallelConfig& config = judged_step.config();
  CombineRounding rounding;
  rounding.sum_roundings = judged_step.sum_roundings;
  if (config.combine == Combine::kAllGatherReduceScatter) {
    rounding.sent = config.reduce_dtype;
  } else {
    rounding.weighted_before = false;
  }
  return rounding;
}

// What attention returned, with rows that see nothing settled: attention owes them nothing, stage
// "mask" is judged on its own.
Tensor settled(const TensorView& returned, const DecodePlan& plan, float empty) {
  Tensor result = copied_to_host(returned, {});
  const std::int64_t row = returned.elements() / std::max<std::int64_t>(returned.size(0), 1);
  for (std::int64_t i = 0; i < returned.elements(); ++i) {
    if (plan.visible[static_cast<std::size_t>(i / row)] != 0) continue;
    if (returned.dtype == DType::kF32) {
      result.as<float>()[i] = empty;
    } else {
      result.as<BFloat16>()[i] = BFloat16::from_float(empty);
    }
  }
  return result;
}

// Attention on every shard, and the whole step, against the unsharded problem.
void check_attention(const Judged& judged_step, std::vector<Check>& checks) {
  const ParallelConfig& config = judged_step.config();
  const OracleInputs inputs = oracle_inputs(judged_step);
  const ExpectedDecode expected = expect_decode(inputs.problem, judged_step.profile,
                                                combine_rounding(judged_step), judged_step.threads);
  for (std::size_t r = 0; r < judged_step.outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const TapStore& taps = judged_step.taps(r);
    const DecodePlan& plan = judged_step.outcome.ranks[r].plan;
    checks.push_back(check_within("attention", rank, "output of the shard against fp64",
                                  settled(taps.at("attention.out"), plan, 0.0F),
                                  expected.per_set[r].out));
    checks.push_back(check_within("attention", rank, "LSE of the shard against fp64",
                                  settled(taps.at("attention.lse"), plan, kEmptyLse),
                                  expected.per_set[r].lse));
    if (judged_step.profile.device_lse) {
      checks.push_back(check_within(
          "attention", rank, "LSE of the shard against the tensor core's",
          settled(taps.at("attention.lse"), plan, kEmptyLse),
          expect_device_lse(inputs.problem, judged_step.profile, rank, judged_step.threads)));
    }
    if (config.dcp == 1 || config.project_before_merge) continue;
    const std::int64_t h = config.local_heads();
    checks.push_back(check_within("output", rank, "combined latents against the unsharded fp64",
                                  combined_output(taps),
                                  heads_of(expected.combined.out, rank * h, h)));
  }
}

// Stage 7 from the partials it was given.
void check_reduce_scatter(const Judged& judged_step, std::vector<Check>& checks) {
  const ParallelConfig& config = judged_step.config();
  const std::int64_t h = config.local_heads();
  for (std::size_t r = 0; r < judged_step.outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const TapStore& taps = judged_step.taps(r);
    checks.push_back(check_within("correct", rank, "weight x partial against fp64",
                                  taps.at("correct.out"),
                                  expect_corrected(taps.at("correct.in"), taps.at("correct.lses"),
                                                   rank, config.reduce_dtype)));
    std::vector<TensorView> addends;
    for (std::size_t s = 0; s < judged_step.outcome.ranks.size(); ++s) {
      addends.push_back(judged_step.taps(s).at("correct.out").narrow(1, rank * h, h));
    }
    checks.push_back(
        check_within("combined", rank, "sum of the ranks' partials against fp64",
                     taps.at("reduce_scatter.output.out"),
                     expect_sum(addends, config.reduce_dtype, judged_step.sum_roundings)));
  }
}

void check_merge(const Judged& judged_step, std::vector<Check>& checks) {
  const std::int64_t h = judged_step.config().local_heads();
  for (std::size_t r = 0; r < judged_step.outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const TapStore& taps = judged_step.taps(r);
    const TensorView& partials = taps.at("merge.partials");  // [N, T, H, X]
    const TensorView& lses = taps.at("merge.lses");          // [N, T, H]
    Tensor sent(host_device(), partials.dtype, partials.shape, "exchanged partials");
    Tensor sent_lses(host_device(), lses.dtype, lses.shape, "exchanged lses");
    for (std::size_t s = 0; s < judged_step.outcome.ranks.size(); ++s) {
      const TapStore& from = judged_step.taps(s);
      const TensorView& partial =
          judged_step.config().project_before_merge ? from.at("project.out") : from.at("mask.out");
      const auto block = static_cast<std::int64_t>(s);
      host_device().copy_strided(sent.view().select(0, block), partial.narrow(1, rank * h, h), {});
      host_device().copy_strided(sent_lses.view().select(0, block),
                                 from.at("mask.lse").narrow(1, rank * h, h), {});
    }
    checks.push_back(check_equal_bits("merge", rank, "exchanged partials", partials, sent));
    checks.push_back(check_equal_bits("merge", rank, "exchanged LSE", lses, sent_lses));
    const ExpectedAttention merged = expect_merged(partials, lses, DType::kBF16);
    checks.push_back(check_within("combined", rank, "merge of the partials against fp64",
                                  taps.at("combined.out"), merged.out));
    checks.push_back(check_within("combined", rank, "merged LSE against fp64",
                                  taps.at("combined.lse"), merged.lse));
  }
}

}  // namespace

Check check_within(const std::string& stage, int rank, const std::string& name,
                   const TensorView& got, const Expected& wanted,
                   const std::function<std::string(const Shape& index)>& where) {
  const Comparison comparison = compare(got, wanted);
  Check check{stage, rank, name};
  check.status = comparison.pass() ? CheckStatus::kPass : CheckStatus::kFail;
  check.measured = std::fabs(comparison.actual - comparison.expected);
  check.bound = comparison.bound;
  if (comparison.actual == comparison.expected) check.measured = 0.0;  // equal infinities
  if (!comparison.pass()) {
    check.message =
        fmt::format("stage {}, rank {}: {}{}", stage, rank,
                    where ? where(comparison.worst_index) + ", " : "", to_string(comparison));
  }
  return check;
}

std::vector<Check> bounded_decode_checks(const Scenario& scenario, const DecodeProblem& problem,
                                         const GroupOutcome& outcome,
                                         const NumericsProfile& profile, int sum_roundings) {
  const Judged judged_step{scenario, problem, outcome, profile, sum_roundings, threads_per_rank(1)};
  std::vector<Check> checks;
  check_products(judged_step, checks);
  if (scenario.collective == "fake") {
    for (const char* stage : {"attention", "combined"}) {
      checks.push_back(skipped(stage, Check::kAllRanks, "against fp64",
                               "the fake group's peers are copies of one rank"));
    }
    return checks;
  }
  check_attention(judged_step, checks);
  if (scenario.parallel.dcp == 1) return checks;
  if (scenario.parallel.combine == Combine::kAllGatherReduceScatter) {
    check_reduce_scatter(judged_step, checks);
  } else {
    check_merge(judged_step, checks);
  }
  return checks;
}

}  // namespace mladcp
