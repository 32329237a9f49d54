// The ways a fault enters a run: an edited plan, an operation replaced by a function, a collective
// replaced by a function. Edits of device tensors go through the host, so every fault works on
// every device.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "collectives/forwarding_collective.h"
#include "harness/forwarding_ops.h"
#include "harness/variation.h"

namespace mladcp {

constexpr int kEveryRank = -1;
inline bool injected_on(int wanted, int rank) { return wanted == kEveryRank || wanted == rank; }

// Copies a tensor to the host, lets `edit` change it, and copies it back.
void edit_tensor(const TensorView& tensor, Stream stream,
                 const std::function<void(const TensorView& host)>& edit);
// Element access on host tensors of bf16, fp32 or e4m3.
float value_at(const TensorView& host, std::int64_t index);
void set_value(const TensorView& host, std::int64_t index, float value);
// value = change(value, index) for every element.
void map_values(const TensorView& tensor, Stream stream,
                const std::function<float(float value, std::int64_t index)>& change);

class PlanFault final : public Variation {
 public:
  using Edit = std::function<void(int rank, DecodePlan& plan)>;
  PlanFault(int rank, Edit edit) : rank_(rank), edit_(std::move(edit)) {}
  void change_plan(int rank, DecodePlan& plan) const override {
    if (injected_on(rank_, rank)) edit_(rank, plan);
  }

 private:
  int rank_;
  Edit edit_;
};

class PrefillPlanFault final : public Variation {
 public:
  using Edit = std::function<void(int rank, PrefillPlan& plan)>;
  PrefillPlanFault(int rank, Edit edit) : rank_(rank), edit_(std::move(edit)) {}
  void change_prefill_plan(int rank, PrefillPlan& plan) const override {
    if (injected_on(rank_, rank)) edit_(rank, plan);
  }

 private:
  int rank_;
  Edit edit_;
};

// Each function, where given, replaces the method: it may call next with other arguments, edit what
// next made, or not call it at all.
struct OpFunctions {
  std::function<void(QueryOps& next, const TensorView& out, const TensorView& q_nope,
                     const TensorView& w_uk, Stream stream)>
      absorb;
  std::function<void(QueryOps& next, const TensorView& out, const TensorView& latent,
                     const TensorView& rope, float q_scale, Stream stream)>
      concat_quantize;
  std::function<void(QueryOps& next, const TensorView& out, const TensorView& latent,
                     const TensorView& w_uv, Stream stream)>
      project_value;
  std::function<void(CacheOps& next, const KvCache& cache, const TensorView& kv_c,
                     const TensorView& k_pe, const TensorView& slots, Stream stream)>
      write;
  std::function<void(AttentionOps& next, const ScheduleTensors& schedule, const TensorView& lengths,
                     const ScheduleShape& shape, Stream stream)>
      build_schedule;
  // What one decode call was asked for.
  struct Decode {
    TensorView out;
    TensorView lse;
    Query query;
    KvCache cache;
    DecodeRows rows;
    ScheduleTensors schedule;
    DecodeScales scales;
    TensorView workspace;
    Stream stream;

    void run(AttentionOps& next) const {
      next.decode(out, lse, query, cache, rows, schedule, scales, workspace, stream);
    }
  };
  std::function<void(AttentionOps& next, const Decode& call)> decode;
  std::function<void(CombineOps& next, const TensorView& out, const TensorView& lse,
                     const TensorView& visible, Stream stream)>
      mask_empty;
  std::function<void(CombineOps& next, const TensorView& corrected, const TensorView& partial,
                     const TensorView& lses, int rank, Stream stream)>
      correct;
  std::function<void(CombineOps& next, const TensorView& out, const TensorView& lse,
                     const TensorView& partials, const TensorView& lses, Stream stream)>
      merge;
  std::function<void(CombineOps& next, const TensorView& packed, const TensorView& partial,
                     const TensorView& lse, Stream stream)>
      pack;
  std::function<void(CombineOps& next, const TensorView& partials, const TensorView& lses,
                     const TensorView& packed, Stream stream)>
      unpack;

  // Of a chunked prefill.
  struct Gather {
    TensorView out;
    KvCache cache;
    TensorView block_table;
    ContextChunkTensors chunk;
    Stream stream;

    void run(CacheOps& next) const {
      next.gather_and_dequantize(out, cache, block_table, chunk, stream);
    }
  };
  std::function<void(CacheOps& next, const Gather& call)> gather;
  std::function<void(CacheOps& next, const TensorView& out, const TensorView& gathered,
                     const TensorView& source_rows, Stream stream)>
      reorganise;
  std::function<void(QueryOps& next, const TensorView& key, const TensorView& value,
                     const TensorView& rows, const TensorView& w_uk, const TensorView& w_uv,
                     Stream stream)>
      project_keys_values;
  // One causal or context call; cu_keys are the rows of a causal one.
  struct Attend {
    TensorView out;
    TensorView lse;
    TensorView query;
    TensorView key;
    TensorView value;
    TensorView cu_rows;
    std::int64_t max_rows = 0;
    TensorView cu_keys;
    bool causal = false;
    float softmax_scale = 1.0F;
    Stream stream;

    void run(AttentionOps& next) const {
      if (causal) {
        next.causal(out, lse, query, key, value, cu_rows, max_rows, softmax_scale, stream);
      } else {
        next.context(out, lse, query, key, value, cu_rows, max_rows, cu_keys, softmax_scale,
                     stream);
      }
    }
  };
  std::function<void(AttentionOps& next, const Attend& call)> causal;
  std::function<void(AttentionOps& next, const Attend& call)> context;
  struct MergeInto {
    TensorView running;
    TensorView running_lse;
    TensorView partial;
    TensorView partial_lse;
    Stream stream;

    void run(CombineOps& next) const {
      next.merge_into(running, running_lse, partial, partial_lse, stream);
    }
  };
  std::function<void(CombineOps& next, const MergeInto& call)> merge_into;
  std::function<void(CombineOps& next, const TensorView& out, const TensorView& value,
                     Stream stream)>
      round_to;
};

class OpFault final : public Variation {
 public:
  // Functions that remember nothing, or, from `make`, a set for every rank of every run.
  OpFault(int rank, OpFunctions functions)
      : OpFault(rank, [functions = std::move(functions)] { return functions; }) {}
  OpFault(int rank, std::function<OpFunctions()> make) : rank_(rank), make_(std::move(make)) {}
  std::unique_ptr<OpsDecorator> decorate(int rank, const Ops& next) const override;
  using Variation::decorate;

 private:
  int rank_;
  std::function<OpFunctions()> make_;
};

class CollectiveFault final : public Variation {
 public:
  // Hands a call on to the real group.
  using Forward = std::function<void(const CollectiveCall& call, const TensorView& out,
                                     const TensorView& in, Stream stream)>;
  using Run = std::function<void(const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream)>;
  // One function that remembers nothing, or, from `make`, one for every rank of every run.
  CollectiveFault(int rank, Run run)
      : CollectiveFault(rank, [run = std::move(run)] { return run; }) {}
  CollectiveFault(int rank, std::function<Run()> make) : rank_(rank), make_(std::move(make)) {}
  std::unique_ptr<Collective> decorate(int rank, Collective& next) const override;
  using Variation::decorate;

 private:
  int rank_;
  std::function<Run()> make_;
};

}  // namespace mladcp
