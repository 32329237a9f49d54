// Faults in a chunked prefill's plan: chunks, real lengths, slots of new tokens.
#include <algorithm>
#include <memory>
#include <utility>

#include "harness/fault.h"
#include "harness/fault_variations.h"

namespace mladcp {
namespace {

Fault plan_fault(std::string name, std::string imitates, int rank, PrefillPlanFault::Edit edit) {
  return {std::move(name),
          std::move(imitates),
          "plan",
          rank,
          prefill_fault_scenario(),
          {"numeric"},
          std::make_shared<PrefillPlanFault>(rank, std::move(edit))};
}

// Drops reorganised rows for which `keeps` says false; the prefix sums follow.
void keep_rows(
    ContextChunk& chunk,
    const std::function<bool(std::size_t request, std::int64_t local, std::int64_t rank)>& keeps) {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> cu = {0};
  for (std::size_t b = 0; b + 1 < chunk.cu_seq_lens.size(); ++b) {
    for (std::int32_t i = chunk.cu_seq_lens[b]; i < chunk.cu_seq_lens[b + 1]; ++i) {
      const std::int32_t row = chunk.source_rows[static_cast<std::size_t>(i)];
      const std::int64_t local = row % chunk.toks - chunk.padded_local_cu_seq_lens[b];
      if (keeps(b, local, row / chunk.toks)) rows.push_back(row);
    }
    cu.push_back(static_cast<std::int32_t>(rows.size()));
  }
  chunk.source_rows = std::move(rows);
  chunk.cu_seq_lens = std::move(cu);
}

// Every padded row counts as a real one.
void pretend_no_padding(ContextChunk& chunk, std::int64_t world_size) {
  chunk.source_rows.clear();
  for (std::size_t b = 0; b + 1 < chunk.cu_seq_lens.size(); ++b) {
    for (std::int64_t r = 0; r < world_size; ++r) {
      for (std::int32_t t = chunk.padded_local_cu_seq_lens[b];
           t < chunk.padded_local_cu_seq_lens[b + 1]; ++t) {
        chunk.source_rows.push_back(static_cast<std::int32_t>(r * chunk.toks) + t);
      }
    }
    chunk.cu_seq_lens[b + 1] = static_cast<std::int32_t>(chunk.source_rows.size());
  }
}

std::vector<Fault> chunk_faults() {
  const KvSharding sharding = prefill_fault_scenario().parallel.sharding();
  return {
      plan_fault("chunk-starts-forgotten", "seq_starts of a later chunk are 0", 1,
                 [](int, PrefillPlan& plan) {
                   for (ContextChunk& chunk : plan.context.chunks) {
                     std::fill(chunk.seq_starts.begin(), chunk.seq_starts.end(), 0);
                   }
                 }),
      plan_fault("chunk-skipped", "a chunk is never walked", Fault::kEveryRank,
                 [](int, PrefillPlan& plan) {
                   plan.context.chunks.erase(plan.context.chunks.begin() + 1);
                 }),
      plan_fault(
          "chunk-walked-twice", "a chunk is walked twice", Fault::kEveryRank,
          [](int, PrefillPlan& plan) { plan.context.chunks.push_back(plan.context.chunks[1]); }),
      plan_fault("chunk-planned-for-interleave-one",
                 "a cut that is no multiple of N * I (vLLM 41229)", Fault::kEveryRank,
                 [](int, PrefillPlan& plan) {
                   ChunkGeometry geometry = plan.context.geometry;
                   geometry.sharding.interleave = 1;
                   plan.context = build_chunk_plan(plan.context.contexts, geometry);
                 }),
      plan_fault("chunk-padding-is-real", "padded lengths taken for real ones", 0,
                 [sharding](int, PrefillPlan& plan) {
                   for (ContextChunk& chunk : plan.context.chunks) {
                     pretend_no_padding(chunk, sharding.world_size);
                   }
                 }),
      plan_fault("chunk-uneven-tail-lost", "rows that not every rank has are dropped (vLLM 28476)",
                 2,
                 [sharding](int, PrefillPlan& plan) {
                   for (ContextChunk& chunk : plan.context.chunks) {
                     const auto requests = chunk.seq_starts.size();
                     keep_rows(chunk, [&](std::size_t b, std::int64_t local, std::int64_t) {
                       for (std::int64_t r = 0; r < sharding.world_size; ++r) {
                         const auto at = static_cast<std::size_t>(r) * requests + b;
                         if (local >= chunk.real_lengths[at]) return false;
                       }
                       return true;
                     });
                   }
                 }),
      plan_fault("prefix-hit-by-local-page", "prefix hits in pages, not page * N (vLLM 26296)",
                 Fault::kEveryRank,
                 [](int, PrefillPlan& plan) {
                   std::vector<std::int64_t> contexts = plan.context.contexts;
                   for (auto& length : contexts) length -= length % plan.context.geometry.page_size;
                   plan.context = build_chunk_plan(contexts, plan.context.geometry);
                 }),
  };
}

std::vector<Fault> new_token_faults() {
  const ParallelConfig config = prefill_fault_scenario().parallel;
  return {
      plan_fault("prefill-slots-without-context", "slots count from the first new token", 3,
                 [config](int rank, PrefillPlan& plan) {
                   for (std::int64_t b = 0; b < plan.requests(); ++b) {
                     const auto at = static_cast<std::size_t>(b);
                     for (std::int32_t t = plan.cu_rows[at]; t < plan.cu_rows[at + 1]; ++t) {
                       const auto row = static_cast<std::size_t>(t);
                       plan.slots[row] = slot_of(config.sharding(),
                                                 plan.position[row] - plan.context.contexts[at],
                                                 rank, config.page_size, plan.block_table.row(b));
                     }
                   }
                 }),
      plan_fault("prefill-rows-of-neighbour", "a request's last new row counted to the next", 1,
                 [](int, PrefillPlan& plan) { --plan.cu_rows[1]; }),
  };
}

}  // namespace

std::vector<Fault> prefill_plan_faults() {
  std::vector<Fault> faults = chunk_faults();
  for (Fault& fault : new_token_faults()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace mladcp
