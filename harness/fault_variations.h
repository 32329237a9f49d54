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
};

class OpFault final : public Variation {
 public:
  OpFault(int rank, OpFunctions functions) : rank_(rank), functions_(std::move(functions)) {}
  std::unique_ptr<OpsDecorator> decorate(int rank, const Ops& next) const override;
  using Variation::decorate;

 private:
  int rank_;
  OpFunctions functions_;
};

class CollectiveFault final : public Variation {
 public:
  // Hands a call on to the real group.
  using Forward = std::function<void(const CollectiveCall& call, const TensorView& out,
                                     const TensorView& in, Stream stream)>;
  using Run = std::function<void(const Forward& forward, const CollectiveCall& call,
                                 const TensorView& out, const TensorView& in, Stream stream)>;
  CollectiveFault(int rank, Run run) : rank_(rank), run_(std::move(run)) {}
  std::unique_ptr<Collective> decorate(int rank, Collective& next) const override;
  using Variation::decorate;

 private:
  int rank_;
  Run run_;
};

}  // namespace mladcp
