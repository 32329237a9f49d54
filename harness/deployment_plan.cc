#include "harness/deployment_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/ceil_div.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/kv_sharding.h"
#include "harness/expected_collectives.h"
#include "harness/prefill_expectation.h"
#include "harness/report.h"

namespace mladcp {
namespace {

// Keys and pages are counted from the law, request by request; a page is never shared.
RankShare share_of(const Scenario& scenario, std::int64_t rank) {
  const ParallelConfig& config = scenario.parallel;
  const KvSharding sharding = config.sharding();
  const std::int64_t page_bytes = config.page_size * scenario.model_config().dims.row() *
                                  static_cast<std::int64_t>(size_bytes(config.kv_dtype));
  RankShare share;
  for (const StepRequest& request : scenario.step_requests()) {
    const std::int64_t keys = sharding.local_length(request.length, rank);
    share.keys += keys;
    share.longest = std::max(share.longest, keys);
    share.pages += ceil_div(keys, config.page_size);
    const std::int64_t before = request.length - request.q_len;
    share.stored += keys - sharding.local_length(std::max<std::int64_t>(0, before), rank);
    // Rows before the rank's first position see none of its keys.
    share.empty_rows +=
        std::clamp<std::int64_t>(sharding.global(0, rank) - before, 0, request.q_len);
  }
  share.cache_bytes = share.pages * page_bytes;
  return share;
}

// W_UK of the rank's heads; W_UV of as many, or of all gathered ones when partials are projected.
// With a replicated query W_UK too covers the gathered heads.
std::int64_t weight_bytes(const ParallelConfig& config, const MlaDims& dims) {
  const std::int64_t absorb =
      config.replicate_query ? config.gathered_heads() : config.local_heads();
  const std::int64_t project =
      config.project_before_merge ? config.gathered_heads() : config.local_heads();
  return 2 * dims.latent * (absorb * dims.nope + project * dims.value);
}

// A call is every rank's: the report's tables count who made it.
std::vector<CallRecord> of_all_ranks(const DeploymentPlan& plan) {
  std::vector<CallRecord> records;
  for (CallRecord record : plan.calls) {
    for (record.rank = 0; record.rank < static_cast<int>(plan.ranks.size()); ++record.rank) {
      records.push_back(record);
    }
  }
  return records;
}

std::vector<CallRecord> records_of(const std::vector<CollectiveCall>& calls, std::int64_t n) {
  std::vector<CallRecord> records;
  records.reserve(calls.size());
  for (const CollectiveCall& call : calls) {
    records.push_back(make_record(call, 0, static_cast<int>(n)));
  }
  return records;
}

std::int64_t wire_bytes_of(const DeploymentPlan& plan) {
  std::int64_t bytes = 0;
  for (const CallRecord& record : plan.calls) bytes += record.wire_bytes;
  return bytes;
}

void print_ranks(const DeploymentPlan& plan, std::FILE* stream) {
  fmt::print(stream, "{:<5} {:>12} {:>12} {:>10} {:>11} {:>9} {:>12}\n", "rank", "keys", "longest",
             "stored", "empty rows", "pages", "cache");
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankShare& share = plan.ranks[r];
    fmt::print(stream, "{:<5} {:>12} {:>12} {:>10} {:>11} {:>9} {:>12}\n", r, share.keys,
               share.longest, share.stored, share.empty_rows, share.pages,
               bytes_text(share.cache_bytes));
  }
}

// "3: 0..63, 4: 0..127, and 17 more"
std::string pieces_text(const std::vector<ContextPiece>& pieces) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(pieces.size(), kMost); ++i) {
    const ContextPiece& piece = pieces[i];
    text += fmt::format("{}{}: {}..{}", i == 0 ? "" : ", ", piece.request, piece.start,
                        piece.start + piece.length - 1);
  }
  if (pieces.size() > kMost) text += fmt::format(", and {} more", pieces.size() - kMost);
  return text;
}

void print_chunks(const DeploymentPlan& plan, std::FILE* stream) {
  if (plan.context.chunks.empty()) return;
  fmt::print(stream, "\n{:<6} {:>12} {:>12}  {}\n", "chunk", "rows a rank", "tokens",
             "request: positions");
  print_ends(plan.context.chunks.size(), stream, [&](std::size_t c) {
    const ContextChunk& chunk = plan.context.chunks[c];
    fmt::print(stream, "{:<6} {:>12} {:>12}  {}\n", c, chunk.toks, chunk.source_rows.size(),
               pieces_text(chunk.pieces));
  });
}

using Json = nlohmann::ordered_json;

Json to_json(const RankShare& share) {
  return {{"keys", share.keys},     {"longest", share.longest},
          {"stored", share.stored}, {"empty_rows", share.empty_rows},
          {"pages", share.pages},   {"cache_bytes", share.cache_bytes}};
}

Json to_json(const ContextChunk& chunk) {
  Json pieces = Json::array();
  const auto& ends = chunk.padded_local_cu_seq_lens;
  for (const ContextPiece& piece : chunk.pieces) {
    const auto request = static_cast<std::size_t>(piece.request);
    pieces.push_back({{"request", piece.request},
                      {"start", piece.start},
                      {"length", piece.length},
                      {"seq_start", chunk.seq_starts[request]},
                      {"padded_len", ends[request + 1] - ends[request]}});
  }
  return {{"toks", chunk.toks}, {"pieces", pieces}};
}

}  // namespace

DeploymentPlan plan_deployment(const Scenario& scenario) {
  if (scenario.phase == Phase::kBoth) {
    throw InvalidArgument(
        "phase is both, whose steps have a plan each: use --phase decode or --phase prefill");
  }
  const ParallelConfig& config = scenario.parallel;
  const MlaDims dims = scenario.model_config().dims;
  DeploymentPlan plan;
  plan.scenario = scenario;
  for (const StepRequest& request : scenario.step_requests()) {
    plan.rows += request.q_len;
    plan.whole_bytes += ceil_div(request.length, config.page_size) * config.page_size * dims.row() *
                        static_cast<std::int64_t>(size_bytes(config.kv_dtype));
  }
  for (std::int64_t r = 0; r < config.dcp; ++r) plan.ranks.push_back(share_of(scenario, r));
  plan.weight_bytes = weight_bytes(config, dims);
  if (scenario.phase == Phase::kPrefill) {
    plan.context = build_chunk_plan(scenario.context_lens, chunk_geometry(scenario));
    plan.calls = records_of(expected_prefill_collectives(config, dims, plan.context), config.dcp);
  } else {
    plan.calls = records_of(expected_decode_collectives(config, dims, plan.rows), config.dcp);
  }
  return plan;
}

std::string to_json(const DeploymentPlan& plan) {
  Json json = {{"schema", "mladcp.plan/1"},
               {"verdict", "pass"},
               {"scenario", Json::parse(to_json(plan.scenario))},
               {"rows", plan.rows},
               {"ranks", Json::array()},
               {"weight_bytes", plan.weight_bytes},
               {"whole_cache_bytes", plan.whole_bytes},
               {"wire_bytes", wire_bytes_of(plan)},
               {"collectives", Json::parse(collectives_json(of_all_ranks(plan)))},
               {"chunks", Json::array()}};
  for (const RankShare& share : plan.ranks) json["ranks"].push_back(to_json(share));
  for (const ContextChunk& chunk : plan.context.chunks) json["chunks"].push_back(to_json(chunk));
  return json.dump(2);
}

void print(const DeploymentPlan& plan, std::FILE* stream) {
  print_configuration("plan", plan.scenario, stream);
  print_ranks(plan, stream);
  print_chunks(plan, stream);
  print_collectives(of_all_ranks(plan), stream);
  fmt::print(stream,
             "\na layer: cache {} without DCP; W_UK, W_UV {} a rank; a step of {} rows receives "
             "{} a rank\n",
             bytes_text(plan.whole_bytes), bytes_text(plan.weight_bytes), plan.rows,
             bytes_text(wire_bytes_of(plan)));
}

}  // namespace mladcp
