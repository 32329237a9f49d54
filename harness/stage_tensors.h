// What every stage of a step left on every rank, for probes and faults that compare two runs bit
// for bit or loosely.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "harness/probe.h"
#include "harness/problem.h"

namespace mladcp {

struct StageTensor {
  // A value grows with the cache's scale, an LSE keeps when the query's shrinks as much.
  enum class Kind { kQuery, kLse, kValue };

  const char* stage;
  std::string name;
  Kind kind;
  Tensor tensor;
  std::string part = {};  // "chunk 2", where a stage runs several times
};

struct RankStages {
  int rank = 0;                      // TP rank
  std::vector<StageTensor> tensors;  // in stage order
  Tensor output;                     // [T, H, Vd] bf16
};

// Runs a step, as scenario.phase says, on every group. Decode keeps the last tensors of each stage,
// prefill those of every chunk, on sampled rows and heads. Of the ranks whose step this process can
// judge: none where another process judges decode, its own of a prefill.
std::vector<RankStages> run_stages(const ProbeContext& context, const Scenario& scenario,
                                   const DecodeProblem& problem, const PagedLayout& layout);

}  // namespace mladcp
