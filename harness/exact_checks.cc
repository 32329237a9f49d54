#include "harness/exact_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/expected_collectives.h"
#include "harness/rank_inputs.h"
#include "reference/schedule_laws.h"

namespace mladcp {
namespace {

// The plan of one rank by counting: every position in turn, kept by whoever owner() names.
DecodePlan plan_by_counting(const ParallelConfig& config, const DecodeProblem& problem,
                            const PagedLayout& layout, int rank) {
  const KvSharding sharding = config.sharding();
  DecodePlan plan;
  plan.block_table = layout.table;
  plan.row_begin.push_back(0);
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    const auto table = layout.table.row(static_cast<std::int64_t>(b));
    const std::int64_t first_new = request.length - request.q_len;
    std::int32_t kept = 0;
    for (std::int64_t p = std::min<std::int64_t>(first_new, 0); p < request.length; ++p) {
      std::int64_t slot = kNoSlot;
      if (p >= 0 && sharding.owner(p) == rank) {
        slot = std::int64_t{table[static_cast<std::size_t>(kept / config.page_size)]} *
                   config.page_size +
               kept % config.page_size;
        ++kept;
      }
      if (p < first_new) continue;
      plan.request.push_back(static_cast<std::int32_t>(b));
      plan.position.push_back(p);
      plan.slots.push_back(slot);
      plan.visible.push_back(kept);
    }
    plan.row_begin.push_back(static_cast<std::int32_t>(plan.rows()));
    plan.lengths.push_back(request.q_len > 0 ? kept : 0);
    plan.max_q_len = std::max(plan.max_q_len, request.q_len);
  }
  return plan;
}

template <typename T>
void compare_field(const char* field, const std::vector<T>& got, const std::vector<T>& wanted,
                   std::int64_t& wrong, std::string& first) {
  for (std::size_t i = 0; i < std::max(got.size(), wanted.size()); ++i) {
    if (i < got.size() && i < wanted.size() && got[i] == wanted[i]) continue;
    if (wrong++ == 0) {
      first = fmt::format("{}[{}]: got {}, wanted {}", field, i,
                          i < got.size() ? std::to_string(got[i]) : "nothing",
                          i < wanted.size() ? std::to_string(wanted[i]) : "nothing");
    }
  }
}

// "plan": what core planned against the same by counting.
Check plan_check(const ParallelConfig& config, const DecodeProblem& problem,
                 const PagedLayout& layout, const GroupOutcome& outcome, int rank) {
  const DecodePlan& got = outcome.ranks[static_cast<std::size_t>(rank)].plan;
  const DecodePlan wanted = plan_by_counting(config, problem, layout, rank);
  std::int64_t wrong = 0;
  std::string first;
  compare_field("request", got.request, wanted.request, wrong, first);
  compare_field("position", got.position, wanted.position, wrong, first);
  compare_field("slots", got.slots, wanted.slots, wrong, first);
  compare_field("visible", got.visible, wanted.visible, wrong, first);
  compare_field("row_begin", got.row_begin, wanted.row_begin, wrong, first);
  compare_field("lengths", got.lengths, wanted.lengths, wrong, first);
  compare_field("block_table", got.block_table.pages, wanted.block_table.pages, wrong, first);
  return check_count("plan", rank, "slots, visible lengths, tables by counting", wrong, first);
}

// "schedule": the tile schedule by its laws, for the gathered heads.
Check schedule_check(const ParallelConfig& config, const RankOutcome& at_rank,
                     const Backend& backend, int rank) {
  const TensorView& tensor = at_rank.taps.at("schedule.parts");
  const TensorView& splits = at_rank.taps.at("schedule.num_splits");
  const char* name = "tile schedule by its laws, N x H heads";
  if (at_rank.plan.requests() == 0) return skipped("schedule", rank, name, "no requests");
  const ScheduleParams params =
      backend.schedule_params({config.gathered_heads(), at_rank.plan.max_q_len});
  std::vector<SchedulePart> parts;
  const std::span<const std::int32_t> numbers(tensor.as<const std::int32_t>(),
                                              static_cast<std::size_t>(tensor.elements()));
  for (std::int64_t p = 0; p < tensor.size(0); ++p) parts.push_back(read_part(numbers, p));
  ScheduleClaim claim;
  claim.dialect = ScheduleDialect::kBlocks;
  claim.lengths = at_rank.plan.lengths;
  claim.parts = parts;
  claim.num_splits = {splits.as<const std::int32_t>(), static_cast<std::size_t>(splits.elements())};
  claim.block = params.block;
  claim.overhead_blocks = params.overhead_blocks;
  std::vector<ScheduleViolation> violations =
      judge_part_count(tensor.size(0), params.num_sms,
                       config.gathered_heads() * at_rank.plan.max_q_len, params.h_kv);
  for (const ScheduleViolation& violation : judge_schedule(claim)) violations.push_back(violation);
  return check_count("schedule", rank, name, static_cast<std::int64_t>(violations.size()),
                     violations.empty()
                         ? ""
                         : "law " + std::string(violations[0].law) + ": " + violations[0].message);
}

// "quantise": the local query's codes, from the absorbed latents the stage was given.
Check quantise_check(const ParallelConfig& config, const DecodeProblem& problem,
                     const GroupOutcome& outcome, int rank) {
  const char* name = "query codes against round(x / q_scale)";
  const RankOutcome& at_rank = outcome.ranks[static_cast<std::size_t>(rank)];
  if (!config.quantized_query()) {
    return skipped("quantise", rank, name, "the query stays a bf16 pair");
  }
  const HeadRange heads = config.replicate_query ? gathered_heads(config, outcome.group)
                                                 : local_heads(config, outcome.group, rank);
  const TensorView latent = at_rank.taps.at("absorb.out");  // [T, heads, L]
  const Tensor rope = copied_to_host(problem.q_rope.view().narrow(1, heads.begin, heads.count), {});
  const TensorView& got = at_rank.taps.at("query.local");
  Tensor wanted(host_device(), DType::kE4M3, got.shape, "query");
  const MlaDims& dims = problem.dims;
  const std::int64_t rows = element_count(got.shape) / std::max<std::int64_t>(dims.row(), 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    auto* out = wanted.as<Float8E4M3>() + row * dims.row();
    const auto* l = latent.as<const BFloat16>() + row * dims.latent;
    const auto* r = rope.as<const BFloat16>() + row * dims.rope;
    for (std::int64_t i = 0; i < dims.row(); ++i) {
      const float x = i < dims.latent ? l[i].to_float() : r[i - dims.latent].to_float();
      out[i] = Float8E4M3::from_float(x / config.q_scale);
    }
  }
  return check_equal_bits("quantise", rank, name, got, wanted);
}

// "query": the gathered query holds every rank's heads, side by side in rank order.
Check query_check(const Scenario& scenario, const GroupOutcome& outcome, int rank) {
  const char* name = "gathered heads against the ranks' queries";
  const RankOutcome& at_rank = outcome.ranks[static_cast<std::size_t>(rank)];
  if (!at_rank.taps.has("all_gather.query.out")) {
    return skipped("query", rank, name, "no query gather in this configuration");
  }
  const TensorView& got = at_rank.taps.at("all_gather.query.out");  // [T, Hg, D]
  Tensor wanted(host_device(), got.dtype, got.shape, "gathered query");
  const std::int64_t h = scenario.parallel.local_heads();
  for (std::size_t s = 0; s < outcome.ranks.size(); ++s) {
    const bool fake = scenario.collective == "fake";  // every peer is this rank
    const TensorView& source =
        outcome.ranks[fake ? static_cast<std::size_t>(rank) : s].taps.at("query.local");
    host_device().copy_strided(wanted.view().narrow(1, static_cast<std::int64_t>(s) * h, h), source,
                               {});
  }
  return check_equal_bits("query", rank, name, got, wanted);
}

// "correct": the gathered LSE holds every rank's, in rank order.
Check gathered_lse_check(const Scenario& scenario, const GroupOutcome& outcome, int rank) {
  const char* name = "gathered LSE against the ranks' LSE";
  const RankOutcome& at_rank = outcome.ranks[static_cast<std::size_t>(rank)];
  if (!at_rank.taps.has("correct.lses") || scenario.collective == "fake") {
    return skipped("correct", rank, name, "no LSE gather among real peers");
  }
  const TensorView& got = at_rank.taps.at("correct.lses");  // [N, T, Hg]
  Tensor wanted(host_device(), got.dtype, got.shape, "gathered lse");
  for (std::size_t s = 0; s < outcome.ranks.size(); ++s) {
    host_device().copy_strided(wanted.view().select(0, static_cast<std::int64_t>(s)),
                               outcome.ranks[s].taps.at("mask.lse"), {});
  }
  return check_equal_bits("correct", rank, name, got, wanted);
}

// "mask": rows without a visible key are 0 and -inf, bit for bit; all others are untouched by it.
Check mask_check(const RankOutcome& at_rank, int rank) {
  const TensorView& out = at_rank.taps.at("mask.out");          // [T, Hg, L]
  const TensorView& before = at_rank.taps.at("attention.out");  // [T, Hg, L]
  const std::int64_t row = out.size(1) * out.size(2);
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t t = 0; t < out.size(0); ++t) {
    const bool empty = at_rank.plan.visible[static_cast<std::size_t>(t)] == 0;
    for (std::int64_t i = t * row; i < (t + 1) * row; ++i) {
      const std::uint16_t wanted = empty ? 0 : before.as<const BFloat16>()[i].bits;
      if (out.as<const BFloat16>()[i].bits == wanted) continue;
      if (wrong++ == 0) {
        first = fmt::format("tensor partial output{}: got {}, wanted {}", coordinates(out.shape, i),
                            element_text(out, i),
                            empty ? "0 (no visible key)" : element_text(before, i));
      }
    }
  }
  return check_count("mask", rank, "empty rows 0, others untouched", wrong, first);
}

// "lse": finite exactly when the row has a visible local key, -inf otherwise.
Check lse_check(const RankOutcome& at_rank, int rank) {
  const TensorView& lse = at_rank.taps.at("mask.lse");  // [T, Hg]
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    const std::int64_t t = i / lse.size(1);
    const bool sees = at_rank.plan.visible[static_cast<std::size_t>(t)] > 0;
    const float value = lse.as<const float>()[i];
    const bool right =
        sees ? std::isfinite(value) : value == -std::numeric_limits<float>::infinity();
    if (right) continue;
    if (wrong++ == 0) {
      first = fmt::format("tensor lse{}: got {}, wanted {} ({} visible keys)",
                          coordinates(lse.shape, i), value, sees ? "a finite value" : "-inf",
                          at_rank.plan.visible[static_cast<std::size_t>(t)]);
    }
  }
  return check_count("lse", rank, "finite exactly when a key is visible", wrong, first);
}

}  // namespace

std::string coordinates(const Shape& shape, std::int64_t index) {
  Shape at = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    at[dim] = index % shape[dim];
    index /= shape[dim];
  }
  return to_string(at);
}

std::string element_text(const TensorView& tensor, std::int64_t index) {
  switch (tensor.dtype) {
    case DType::kE4M3: {
      const Float8E4M3 code = tensor.as<const Float8E4M3>()[index];
      return fmt::format("{} (0x{:02X})", code.to_float(), code.bits);
    }
    case DType::kBF16: {
      const BFloat16 value = tensor.as<const BFloat16>()[index];
      return fmt::format("{} (0x{:04X})", value.to_float(), value.bits);
    }
    case DType::kF32:
      return fmt::format("{}", tensor.as<const float>()[index]);
    case DType::kF64:
      return fmt::format("{}", tensor.as<const double>()[index]);
    case DType::kI32:
      return fmt::format("{}", tensor.as<const std::int32_t>()[index]);
    case DType::kI64:
      return fmt::format("{}", tensor.as<const std::int64_t>()[index]);
    case DType::kBytes:
      return fmt::format("0x{:02X}", tensor.as<const unsigned char>()[index]);
  }
  return "?";
}

Check check_count(const std::string& stage, int rank, const std::string& name, std::int64_t wrong,
                  const std::string& first) {
  Check check{stage,
              rank,
              name,
              wrong == 0 ? CheckStatus::kPass : CheckStatus::kFail,
              static_cast<double>(wrong),
              0.0,
              ""};
  if (wrong != 0) check.message = fmt::format("stage {}, rank {}: {}", stage, rank, first);
  return check;
}

Check check_calls(const std::vector<CollectiveCall>& wanted, const std::vector<CallRecord>& calls,
                  int rank) {
  std::vector<CollectiveCall> got;
  for (const CallRecord& record : calls) {
    if (record.rank == rank) got.push_back(record.call);
  }
  std::int64_t wrong = 0;
  std::string first;
  for (std::size_t i = 0; i < std::max(got.size(), wanted.size()); ++i) {
    if (i < got.size() && i < wanted.size() && got[i] == wanted[i]) continue;
    if (wrong++ == 0) {
      first = fmt::format("call {}: got {}, wanted {}", i,
                          i < got.size() ? describe(got[i]) : "no call",
                          i < wanted.size() ? describe(wanted[i]) : "no call");
    }
  }
  return check_count("collectives", rank, "op, order, axis, dtype, shapes", wrong, first);
}

Check check_equal_bits(const std::string& stage, int rank, const std::string& name,
                       const TensorView& got, const TensorView& wanted) {
  if (got.dtype != wanted.dtype || !(got.shape == wanted.shape)) {
    return check_count(stage, rank, name, 1,
                       fmt::format("got {}, wanted {}", describe(got), describe(wanted)));
  }
  const std::size_t width = size_bytes(got.dtype);
  const auto* a = got.as<const unsigned char>();
  const auto* b = wanted.as<const unsigned char>();
  std::int64_t wrong = 0;
  std::string first;
  if (got.elements() != 0 && std::memcmp(a, b, static_cast<std::size_t>(got.bytes())) != 0) {
    for (std::int64_t i = 0; i < got.elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * width;
      if (std::memcmp(a + at, b + at, width) == 0) continue;
      if (wrong++ == 0) {
        first = fmt::format("tensor {}{}: got {}, wanted {}", got.name, coordinates(got.shape, i),
                            element_text(got, i), element_text(wanted, i));
      }
    }
  }
  return check_count(stage, rank, name, wrong, first);
}

std::vector<Check> exact_decode_checks(const Scenario& scenario, const DecodeProblem& problem,
                                       const PagedLayout& layout, const GroupOutcome& outcome,
                                       const Backend& backend) {
  std::vector<Check> checks;
  for (std::size_t r = 0; r < outcome.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    const RankOutcome& at_rank = outcome.ranks[r];
    checks.push_back(plan_check(scenario.parallel, problem, layout, outcome, rank));
    checks.push_back(check_equal_bits("write", rank, "the whole cache, poison included",
                                      at_rank.cache_after,
                                      cache_after_step(scenario.parallel, problem, layout, rank)));
    checks.push_back(quantise_check(scenario.parallel, problem, outcome, rank));
    checks.push_back(query_check(scenario, outcome, rank));
    checks.push_back(schedule_check(scenario.parallel, at_rank, backend, rank));
    checks.push_back(mask_check(at_rank, rank));
    checks.push_back(lse_check(at_rank, rank));
    checks.push_back(gathered_lse_check(scenario, outcome, rank));
    checks.push_back(
        check_calls(expected_decode_collectives(scenario.parallel, problem.dims, problem.rows()),
                    outcome.calls, rank));
  }
  return checks;
}

}  // namespace mladcp
