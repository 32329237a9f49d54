// The tag probe: rows that say what they are, followed through everything that moves them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/decode_run.h"
#include "harness/exact_checks.h"
#include "harness/findings.h"
#include "harness/judged_step.h"
#include "harness/phase_steps.h"
#include "harness/prefill_run.h"
#include "harness/rank_inputs.h"
#include "harness/tag.h"

namespace mladcp {
namespace {

// Rows [.., D] of one dtype and shape, bit for bit; a wrong one is named by its tag.
Check check_rows(const char* stage, int rank, const char* name, const TensorView& got,
                 const TensorView& wanted, const TagReader& named) {
  const int last = got.rank() - 1;
  const std::int64_t width = got.shape[last];
  const auto bytes = static_cast<std::size_t>(width) * size_bytes(got.dtype);
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t row = 0; row * width < got.elements(); ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * bytes;
    if (std::memcmp(got.as<const char>() + at, wanted.as<const char>() + at, bytes) == 0) continue;
    if (wrong++ != 0) continue;
    Shape rows = got.shape;
    rows.erase(last);
    first = fmt::format("tensor {}{}: got {}, wanted {}", got.name, coordinates(rows, row),
                        named(got, row), named(wanted, row));
  }
  return check_count(stage, rank, name, wrong, first);
}

struct TaggedStep {
  const Scenario& scenario;
  const DecodeProblem& problem;
  const PagedLayout& layout;

  TagReader tokens() const { return {problem.dims, "rank", problem.dims.latent}; }
  TagReader queries() const {
    return {problem.dims, "head", std::min(problem.dims.nope, problem.dims.latent)};
  }
};

Check written_check(const TaggedStep& tagged, const TensorView& cache_after, int rank) {
  return check_rows("write", rank, "each token in its slot, by its tag", cache_after,
                    cache_after_step(tagged.scenario.parallel, tagged.problem, tagged.layout, rank),
                    tagged.tokens());
}

// [T, Hg, D]: the query of every head of the group, as stages before the gather leave it.
Tensor wanted_query(const TaggedStep& tagged, const GroupOutcome& outcome, int rank, DType dtype) {
  const ParallelConfig& config = tagged.scenario.parallel;
  const DecodeProblem& problem = tagged.problem;
  const MlaDims& dims = problem.dims;
  const Tensor query(host_device(), DType::kBF16,
                     {problem.rows(), config.gathered_heads(), dims.row()}, "query");
  std::fill_n(query.as<BFloat16>(), query.view().elements(), BFloat16{});
  const std::int64_t carried = std::min(dims.nope, dims.latent);
  for (int s = 0; s < static_cast<int>(config.dcp); ++s) {
    // A fake group's peers are copies of this rank.
    const int source = tagged.scenario.collective == "fake" ? rank : s;
    const HeadRange heads = local_heads(config, outcome.group, source);
    const TensorView to = query.view().narrow(1, s * heads.count, heads.count);
    const auto part = [&](const Tensor& from, std::int64_t width) {
      return from.view().narrow(1, heads.begin, heads.count).narrow(2, 0, width);
    };
    host_device().copy_strided(to.narrow(2, 0, carried), part(problem.q_nope, carried), {});
    host_device().copy_strided(to.narrow(2, dims.latent, dims.rope),
                               part(problem.q_rope, dims.rope), {});
  }
  if (dtype == DType::kBF16) return copied_to_host(query, {});
  Tensor codes(host_device(), dtype, query.shape(), "query");
  std::transform(query.as<BFloat16>(), query.as<BFloat16>() + query.view().elements(),
                 codes.as<Float8E4M3>(),
                 [](BFloat16 x) { return Float8E4M3::from_float(x.to_float()); });
  return codes;
}

Check query_check(const TaggedStep& tagged, const GroupOutcome& outcome, int rank) {
  const char* name = "each head's query in its place, by its tag";
  const TapStore& taps = outcome.ranks[static_cast<std::size_t>(rank)].taps;
  if (!taps.has("all_gather.query.out")) {
    return skipped("query", rank, name, "no query gather in this configuration");
  }
  const TensorView& got = taps.at("all_gather.query.out");
  return check_rows("query", rank, name, got, wanted_query(tagged, outcome, rank, got.dtype),
                    tagged.queries());
}

ProbeOutcome follow_decode(const ProbeContext& step, const TaggedStep& tagged) {
  const std::int64_t n = step.scenario.parallel.dcp;
  ProbeOutcome result;
  for_each_group(step, step.scenario, [&](std::int64_t group, const Progress& progress) {
    progress(0.0, "running the ranks");
    GroupOutcome outcome = run_decode_group(step.scenario, tagged.problem, tagged.layout, group,
                                            step.backend, step.variation);
    if (!outcome.complete) return;
    std::vector<Check> checks;
    for (int rank = 0; rank < static_cast<int>(n); ++rank) {
      const Tensor& cache = outcome.ranks[static_cast<std::size_t>(rank)].cache_after;
      checks.push_back(written_check(tagged, cache, rank));
      checks.push_back(query_check(tagged, outcome, rank));
    }
    append(result, std::move(checks), group, n);
    append(result, std::move(outcome.calls), group, n);
    result.step_seconds = std::max(result.step_seconds, outcome.seconds);
  });
  return result;
}

ProbeOutcome follow_prefill(const ProbeContext& step, const TaggedStep& tagged) {
  const Scenario& scenario = step.scenario;
  const std::int64_t n = scenario.parallel.dcp;
  const PrefillExpectation expectation(scenario, tagged.problem, tagged.layout);
  const PrefillSample nothing;  // of the attention stages, whose output says nothing here
  ProbeOutcome mine;
  for_each_group(step, scenario, [&](std::int64_t group, const Progress& progress) {
    progress(0.0, "running the ranks");
    std::vector<PrefillWatch> watches = watches_of(scenario, expectation, nothing, tagged.tokens());
    PrefillGroupOutcome outcome =
        run_prefill_group(scenario, tagged.problem, tagged.layout, group, step.backend,
                          step.variation, observers(watches));
    std::vector<Check> checks;
    for (const PrefillRankOutcome& at_rank : outcome.ranks) {
      checks.push_back(written_check(tagged, at_rank.cache_after, at_rank.rank));
      const PrefillWatch& watch = watches[static_cast<std::size_t>(at_rank.rank)];
      for (Check& check : watch.movement_checks()) checks.push_back(std::move(check));
    }
    append(mine, std::move(checks), group, n);
    append(mine, std::move(outcome.calls), group, n);
    mine.step_seconds = std::max(mine.step_seconds, outcome.seconds);
  });
  return gathered_at_root(step.backend, std::move(mine));
}

}  // namespace

ProbeOutcome run_tag_probe(const ProbeContext& context) {
  const Scenario tagged = tag_scenario(context.scenario);
  return judge_phase({tagged, context.backend, context.variation, context.progress},
                     [](const ProbeContext& step, const PhasePlan& plan) {
                       const Scenario& scenario = step.scenario;
                       const DecodeProblem problem = tagged_problem(scenario);
                       const PagedLayout layout = plan.layout(scenario.parallel, plan.seed);
                       const TaggedStep of_step{scenario, problem, layout};
                       return scenario.phase == Phase::kPrefill ? follow_prefill(step, of_step)
                                                                : follow_decode(step, of_step);
                     });
}

}  // namespace mladcp
