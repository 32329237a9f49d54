// Taps keep host copies of what every stage received and produced. They decorate a rank's Ops and
// Collective, so that the code under test knows nothing of them.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "collectives/forwarding_collective.h"
#include "core/tensor.h"
#include "harness/forwarding_ops.h"

namespace mladcp {

// Tensors of one rank's step by name, "stage.tensor"; a stage that ran twice keeps its last
// tensors.
class TapStore {
 public:
  void keep(const std::string& name, const TensorView& tensor, Stream stream);
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // InvalidArgument naming the stage when it never ran.
  const TensorView& at(const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  std::map<std::string, Tensor> tensors_;
};

class TappingQueryOps final : public ForwardingQueryOps {
 public:
  TappingQueryOps(QueryOps& next, TapStore& store) : ForwardingQueryOps(next), store_(store) {}
  void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
              Stream stream) override;
  void concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
              Stream stream) override;
  void concat_quantize(const TensorView& out, const TensorView& latent, const TensorView& rope,
                       float q_scale, Stream stream) override;
  void project_value(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                     Stream stream) override;

 private:
  TapStore& store_;
};

class TappingAttentionOps final : public ForwardingAttentionOps {
 public:
  TappingAttentionOps(AttentionOps& next, TapStore& store)
      : ForwardingAttentionOps(next), store_(store) {}
  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override;
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override;

 private:
  TapStore& store_;
};

class TappingCombineOps final : public ForwardingCombineOps {
 public:
  TappingCombineOps(CombineOps& next, TapStore& store)
      : ForwardingCombineOps(next), store_(store) {}
  void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                  Stream stream) override;
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override;
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override;
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override;
  void round_to(const TensorView& out, const TensorView& value, Stream stream) override;

 private:
  TapStore& store_;
};

class TappingCollective final : public ForwardingCollective {
 public:
  TappingCollective(Collective& next, TapStore& store)
      : ForwardingCollective(next), store_(store) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override;

  TapStore& store_;
};

// A rank's operations seen through taps.
struct TappedOps {
  TappedOps(const Ops& next, TapStore& store)
      : query(next.query, store),
        attention(next.attention, store),
        combine(next.combine, store),
        cache(next.cache) {}

  Ops ops() { return {query, cache, attention, combine}; }

  TappingQueryOps query;
  TappingAttentionOps attention;
  TappingCombineOps combine;
  CacheOps& cache;  // its effect is the cache itself, read after the step
};

}  // namespace mladcp
