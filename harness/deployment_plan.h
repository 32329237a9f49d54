// What a scenario asks of every rank, without running it: rows kept, memory, collectives, chunks.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "collectives/call_log.h"
#include "core/chunk_plan.h"
#include "core/decode_plan.h"
#include "harness/scenario.h"

namespace mladcp {

// One rank's share of a step.
struct RankShare {
  std::int64_t keys = 0;         // of all requests, after the step
  std::int64_t longest = 0;      // most keys of one request
  std::int64_t empty_rows = 0;   // query rows that see no key here
  std::int64_t stored = 0;       // new tokens this rank stores
  std::int64_t pages = 0;        // that hold those keys
  std::int64_t cache_bytes = 0;  // of those pages, one layer
};

struct DeploymentPlan {
  Scenario scenario;
  std::vector<RankShare> ranks;   // of one group; all groups have the same
  std::int64_t rows = 0;          // query rows of the step
  std::int64_t weight_bytes = 0;  // W_UK and W_UV a rank holds, bf16, one layer
  std::int64_t whole_bytes = 0;   // of the cache that a rank without DCP keeps, one layer
  std::vector<CallRecord> calls;  // one rank's, in order; times are 0
  ChunkPlan context;              // phase prefill; no chunks otherwise
};

// Phases decode and prefill. InvalidArgument for phase both, whose steps have a plan each, and for
// what the planners of core refuse.
DeploymentPlan plan_deployment(const Scenario& scenario);

// {"schema": "mladcp.plan/1", "verdict": "pass" (planned; nothing is judged), "scenario", "rows",
// "ranks", "weight_bytes", "whole_cache_bytes", "wire_bytes", "collectives", "chunks"}
std::string to_json(const DeploymentPlan& plan);
void print(const DeploymentPlan& plan, std::FILE* stream);

}  // namespace mladcp
