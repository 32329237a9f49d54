#include "harness/prefill_expectation.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/bfloat16.h"
#include "core/conversions.h"
#include "core/device.h"
#include "core/float8_e4m3.h"

namespace mladcp {
namespace {

// One rank keeps everything, whatever the interleave.
KvSharding effective_sharding(const ParallelConfig& config) {
  return config.dcp == 1 ? KvSharding{1, 1} : config.sharding();
}

// Collects faults and keeps the first one's description.
class Violations {
 public:
  explicit Violations(std::string& first) : first_(first) {}

  void add(const std::string& text) {
    if (count_++ == 0) first_ = text;
  }
  std::int64_t count() const { return count_; }

 private:
  std::string& first_;
  std::int64_t count_ = 0;
};

// kept[b][r]: the positions of request b's context that rank r keeps, in the order it keeps them.
using KeptPositions = std::vector<std::vector<std::vector<std::int64_t>>>;

KeptPositions kept_positions(const KvSharding& sharding,
                             const std::vector<std::int64_t>& contexts) {
  KeptPositions kept;
  for (const std::int64_t context : contexts) {
    kept.emplace_back(static_cast<std::size_t>(sharding.world_size));
    for (std::int64_t p = 0; p < context; ++p) {
      kept.back()[static_cast<std::size_t>(sharding.owner(p))].push_back(p);
    }
  }
  return kept;
}

// Marks the tokens a chunk takes and reports those it takes wrongly.
void count_chunk(const ContextChunk& chunk, std::size_t c, const KeptPositions& kept,
                 std::int64_t world_size, std::vector<std::vector<int>>& seen,
                 Violations& violations) {
  const std::size_t requests = kept.size();
  if (chunk.padded_local_cu_seq_lens.size() != requests + 1 ||
      chunk.cu_seq_lens.size() != requests + 1 || chunk.seq_starts.size() != requests ||
      static_cast<std::int64_t>(chunk.padded_local_token_to_seq.size()) != chunk.toks ||
      chunk.cu_seq_lens.back() != static_cast<std::int64_t>(chunk.source_rows.size())) {
    violations.add(fmt::format("chunk {}: its arrays do not fit {} requests and {} local rows", c,
                               requests, chunk.toks));
    return;
  }
  for (std::size_t b = 0; b < requests; ++b) {
    for (std::int64_t i = chunk.cu_seq_lens[b]; i < chunk.cu_seq_lens[b + 1]; ++i) {
      const std::int64_t row = chunk.source_rows[static_cast<std::size_t>(i)];
      const std::int64_t rank = chunk.toks == 0 ? -1 : row / chunk.toks;
      const std::int64_t t = chunk.toks == 0 ? 0 : row % chunk.toks;
      const std::string where = fmt::format("chunk {} source_rows[{}] = {}", c, i, row);
      if (row < 0 || rank >= world_size) {
        violations.add(where + " lies outside the gathered rows");
        continue;
      }
      const std::int64_t owner = chunk.padded_local_token_to_seq[static_cast<std::size_t>(t)];
      if (owner != static_cast<std::int64_t>(b)) {
        violations.add(
            fmt::format("{}: a row of request {}, wanted one of request {}", where, owner, b));
        continue;
      }
      const std::int64_t local = t - chunk.padded_local_cu_seq_lens[b] + chunk.seq_starts[b];
      const auto& positions = kept[b][static_cast<std::size_t>(rank)];
      if (local < 0 || local >= static_cast<std::int64_t>(positions.size())) {
        violations.add(fmt::format("{}: local row {} of rank {} request {} is padding", where,
                                   local, rank, b));
        continue;
      }
      ++seen[b][static_cast<std::size_t>(positions[static_cast<std::size_t>(local)])];
    }
  }
}

void count_context(const Scenario& scenario, const ChunkPlan& plan, Violations& violations) {
  const KvSharding sharding = effective_sharding(scenario.parallel);
  const KeptPositions kept = kept_positions(sharding, plan.contexts);
  std::vector<std::vector<int>> seen;
  for (const std::int64_t context : plan.contexts) {
    seen.emplace_back(static_cast<std::size_t>(context), 0);
  }
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const ContextChunk& chunk = plan.chunks[c];
    if (chunk.toks * sharding.world_size > scenario.workspace_rows) {
      violations.add(
          fmt::format("chunk {}: {} local rows on each of {} ranks pass the workspace of "
                      "{} rows",
                      c, chunk.toks, sharding.world_size, scenario.workspace_rows));
    }
    count_chunk(chunk, c, kept, sharding.world_size, seen, violations);
  }
  for (std::size_t b = 0; b < seen.size(); ++b) {
    for (std::size_t p = 0; p < seen[b].size(); ++p) {
      if (seen[b][p] == 1) continue;
      violations.add(fmt::format("request {} position {} (rank {}) comes {} times, wanted once", b,
                                 p, sharding.owner(static_cast<std::int64_t>(p)), seen[b][p]));
    }
  }
}

void count_new_tokens(const Scenario& scenario, const DecodeProblem& problem,
                      const PagedLayout& layout, std::int64_t rank, const PrefillPlan& plan,
                      Violations& violations) {
  const ParallelConfig& config = scenario.parallel;
  const KvSharding sharding = effective_sharding(config);
  std::size_t t = 0;
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    const auto table = layout.table.row(static_cast<std::int64_t>(b));
    std::int64_t kept = 0;
    for (std::int64_t p = 0; p < request.length; ++p) {
      std::int64_t slot = kNoSlot;
      if (sharding.owner(p) == rank) {
        slot = std::int64_t{table[static_cast<std::size_t>(kept / config.page_size)]} *
                   config.page_size +
               kept % config.page_size;
        ++kept;
      }
      if (p < request.length - request.q_len) continue;
      if (t >= plan.slots.size() || plan.slots[t] != slot || plan.position[t] != p) {
        violations.add(
            fmt::format("request {} position {} (row {}): got slot {}, wanted {}", b, p, t,
                        t < plan.slots.size() ? std::to_string(plan.slots[t]) : "nothing", slot));
      }
      ++t;
    }
    const auto row_end = static_cast<std::int64_t>(t);
    if (b + 1 >= plan.cu_rows.size() || plan.cu_rows[b + 1] != row_end) {
      violations.add(fmt::format("cu_rows[{}]: wanted {}", b + 1, row_end));
    }
  }
  if (plan.slots.size() != t) {
    violations.add(fmt::format("{} slots, wanted {}", plan.slots.size(), t));
  }
  if (plan.block_table.pages != layout.table.pages) violations.add("block_table differs");
}

void copy_rows(const TensorView& to, std::int64_t to_begin, const TensorView& from,
               std::int64_t from_begin, std::int64_t count) {
  host_device().copy_strided(to.narrow(0, to_begin, count), from.narrow(0, from_begin, count), {});
}

}  // namespace

ChunkGeometry chunk_geometry(const Scenario& scenario) {
  const ParallelConfig& config = scenario.parallel;
  return {config.sharding(), config.page_size, scenario.workspace_rows};
}

std::vector<PrefillRequest> prefill_requests(const DecodeProblem& problem) {
  std::vector<PrefillRequest> requests;
  for (const StepRequest& request : problem.requests) {
    requests.push_back({request.length - request.q_len, request.q_len});
  }
  return requests;
}

PrefillExpectation::PrefillExpectation(const Scenario& scenario, const DecodeProblem& problem,
                                       const PagedLayout& layout)
    : sharding_(effective_sharding(scenario.parallel)),
      requests_(prefill_requests(problem)),
      plan_(plan_prefill(chunk_geometry(scenario), {0, layout.pages}, requests_, layout.table)) {
  std::int64_t total = 0;
  for (const PrefillRequest& request : requests_) {
    context_begin_.push_back(total);
    total += request.context;
  }
  const std::int64_t width = problem.dims.row();
  context_rows_ = Tensor(host_device(), DType::kBF16, {total, width}, "context rows");
  for (std::size_t b = 0; b < requests_.size(); ++b) {
    copy_rows(context_rows_, context_begin_[b], problem.kv, problem.kv_begin[b],
              requests_[b].context);
  }
  if (scenario.parallel.kv_dtype == DType::kE4M3) {
    const std::span<BFloat16> rows(context_rows_.as<BFloat16>(),
                                   static_cast<std::size_t>(total * width));
    std::vector<Float8E4M3> codes(rows.size());
    quantize(std::span(codes), std::span<const BFloat16>(rows), scenario.parallel.k_scale);
    dequantize(rows, std::span<const Float8E4M3>(codes), scenario.parallel.k_scale);
  }
}

std::vector<PlacedToken> PrefillExpectation::local_tokens(std::int64_t c, std::int64_t rank) const {
  std::vector<PlacedToken> tokens;
  std::int64_t row = 0;
  for (const ContextPiece& piece : chunk(c).pieces) {
    // The piece takes as many rows on every rank as on the one that keeps most, in whole runs.
    std::int64_t kept = 0;
    std::int64_t runs = 0;
    for (std::int64_t p = piece.start; p < piece.start + piece.length; ++p) {
      if ((p - piece.start) % sharding_.period() == 0) ++runs;
      if (sharding_.owner(p) != rank) continue;
      tokens.push_back({row + kept, piece.request, p});
      ++kept;
    }
    row += runs * sharding_.interleave;
  }
  return tokens;
}

std::vector<PlacedToken> PrefillExpectation::reorganised_tokens(std::int64_t c) const {
  std::vector<PlacedToken> tokens;
  for (const ContextPiece& piece : chunk(c).pieces) {
    for (std::int64_t rank = 0; rank < sharding_.world_size; ++rank) {
      for (std::int64_t p = piece.start; p < piece.start + piece.length; ++p) {
        if (sharding_.owner(p) != rank) continue;
        tokens.push_back({static_cast<std::int64_t>(tokens.size()), piece.request, p});
      }
    }
  }
  return tokens;
}

std::int64_t plan_violations(const Scenario& scenario, const DecodeProblem& problem,
                             const PagedLayout& layout, std::int64_t rank, const PrefillPlan& plan,
                             std::string& first) {
  Violations violations(first);
  if (plan.context.contexts.size() != problem.requests.size()) {
    violations.add(fmt::format("{} requests, wanted {}", plan.context.contexts.size(),
                               problem.requests.size()));
    return violations.count();
  }
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const std::int64_t context = problem.requests[b].length - problem.requests[b].q_len;
    if (plan.context.contexts[b] == context) continue;
    violations.add(fmt::format("context of request {}: got {}, wanted {}", b,
                               plan.context.contexts[b], context));
    return violations.count();
  }
  count_context(scenario, plan.context, violations);
  count_new_tokens(scenario, problem, layout, rank, plan, violations);
  return violations.count();
}

}  // namespace mladcp
