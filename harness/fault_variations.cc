#include "harness/fault_variations.h"

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/float8_e4m3.h"

namespace mladcp {
namespace {

class FaultyQueryOps final : public ForwardingQueryOps {
 public:
  FaultyQueryOps(QueryOps& next, const OpFunctions& functions)
      : ForwardingQueryOps(next), functions_(functions) {}

  void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
              Stream stream) override {
    if (!functions_.absorb) return ForwardingQueryOps::absorb(out, q_nope, w_uk, stream);
    functions_.absorb(next(), out, q_nope, w_uk, stream);
  }
  void concat_quantize(const TensorView& out, const TensorView& latent, const TensorView& rope,
                       float q_scale, Stream stream) override {
    if (!functions_.concat_quantize) {
      return ForwardingQueryOps::concat_quantize(out, latent, rope, q_scale, stream);
    }
    functions_.concat_quantize(next(), out, latent, rope, q_scale, stream);
  }
  void project_value(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                     Stream stream) override {
    if (!functions_.project_value) {
      return ForwardingQueryOps::project_value(out, latent, w_uv, stream);
    }
    functions_.project_value(next(), out, latent, w_uv, stream);
  }
  void project_keys_values(const TensorView& key, const TensorView& value, const TensorView& rows,
                           const TensorView& w_uk, const TensorView& w_uv, Stream stream) override {
    if (!functions_.project_keys_values) {
      return ForwardingQueryOps::project_keys_values(key, value, rows, w_uk, w_uv, stream);
    }
    functions_.project_keys_values(next(), key, value, rows, w_uk, w_uv, stream);
  }

 private:
  const OpFunctions& functions_;
};

class FaultyCacheOps final : public ForwardingCacheOps {
 public:
  FaultyCacheOps(CacheOps& next, const OpFunctions& functions)
      : ForwardingCacheOps(next), functions_(functions) {}

  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override {
    if (!functions_.write) return ForwardingCacheOps::write(cache, kv_c, k_pe, slots, stream);
    functions_.write(next(), cache, kv_c, k_pe, slots, stream);
  }
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override {
    const OpFunctions::Gather call{out, cache, block_table, chunk, stream};
    if (!functions_.gather) return call.run(next());
    functions_.gather(next(), call);
  }
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override {
    if (!functions_.reorganise) {
      return ForwardingCacheOps::reorganise(out, gathered, source_rows, stream);
    }
    functions_.reorganise(next(), out, gathered, source_rows, stream);
  }

 private:
  const OpFunctions& functions_;
};

class FaultyAttentionOps final : public ForwardingAttentionOps {
 public:
  FaultyAttentionOps(AttentionOps& next, const OpFunctions& functions)
      : ForwardingAttentionOps(next), functions_(functions) {}

  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override {
    if (!functions_.build_schedule) {
      return ForwardingAttentionOps::build_schedule(schedule, lengths, shape, stream);
    }
    functions_.build_schedule(next(), schedule, lengths, shape, stream);
  }
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override {
    const OpFunctions::Decode call{out,      lse,    query,     cache, rows,
                                   schedule, scales, workspace, stream};
    if (!functions_.decode) return call.run(next());
    functions_.decode(next(), call);
  }
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override {
    const OpFunctions::Attend call{out,      lse,     query, key,           value, cu_rows,
                                   max_rows, cu_rows, true,  softmax_scale, stream};
    if (!functions_.causal) return call.run(next());
    functions_.causal(next(), call);
  }
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override {
    const OpFunctions::Attend call{out,      lse,        query, key,           value, cu_rows,
                                   max_rows, cu_context, false, softmax_scale, stream};
    if (!functions_.context) return call.run(next());
    functions_.context(next(), call);
  }

 private:
  const OpFunctions& functions_;
};

class FaultyCombineOps final : public ForwardingCombineOps {
 public:
  FaultyCombineOps(CombineOps& next, const OpFunctions& functions)
      : ForwardingCombineOps(next), functions_(functions) {}

  void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                  Stream stream) override {
    if (!functions_.mask_empty) return ForwardingCombineOps::mask_empty(out, lse, visible, stream);
    functions_.mask_empty(next(), out, lse, visible, stream);
  }
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override {
    if (!functions_.correct) {
      return ForwardingCombineOps::correct(corrected, partial, lses, rank, stream);
    }
    functions_.correct(next(), corrected, partial, lses, rank, stream);
  }
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override {
    if (!functions_.merge) {
      return ForwardingCombineOps::merge(out, lse, partials, lses, stream);
    }
    functions_.merge(next(), out, lse, partials, lses, stream);
  }
  void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
            Stream stream) override {
    if (!functions_.pack) return ForwardingCombineOps::pack(packed, partial, lse, stream);
    functions_.pack(next(), packed, partial, lse, stream);
  }
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override {
    if (!functions_.unpack) return ForwardingCombineOps::unpack(partials, lses, packed, stream);
    functions_.unpack(next(), partials, lses, packed, stream);
  }
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse,
                  Stream stream) override {
    const OpFunctions::MergeInto call{running, running_lse, partial, partial_lse, stream};
    if (!functions_.merge_into) return call.run(next());
    functions_.merge_into(next(), call);
  }
  void round_to(const TensorView& out, const TensorView& value, Stream stream) override {
    if (!functions_.round_to) return ForwardingCombineOps::round_to(out, value, stream);
    functions_.round_to(next(), out, value, stream);
  }

 private:
  const OpFunctions& functions_;
};

class FaultyOps final : public OpsDecorator {
 public:
  FaultyOps(const Ops& next, OpFunctions functions)
      : functions_(std::move(functions)),
        query_(next.query, functions_),
        cache_(next.cache, functions_),
        attention_(next.attention, functions_),
        combine_(next.combine, functions_) {}

  Ops ops() override { return {query_, cache_, attention_, combine_}; }

 private:
  OpFunctions functions_;
  FaultyQueryOps query_;
  FaultyCacheOps cache_;
  FaultyAttentionOps attention_;
  FaultyCombineOps combine_;
};

class FaultyCollective final : public ForwardingCollective {
 public:
  FaultyCollective(Collective& next, CollectiveFault::Run run)
      : ForwardingCollective(next), run_(std::move(run)) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    run_([this](const CollectiveCall& c, const TensorView& o, const TensorView& i,
                Stream s) { forward(c, o, i, s); },
         call, out, in, stream);
  }

  CollectiveFault::Run run_;
};

}  // namespace

void edit_tensor(const TensorView& tensor, Stream stream,
                 const std::function<void(const TensorView& host)>& edit) {
  const Tensor host = copied_to_host(tensor, stream);
  edit(host);
  const Tensor edited = copied_to_device(host, *tensor.device, stream);
  tensor.device->copy_strided(tensor, edited, stream);
  tensor.device->synchronize(stream);  // `edited` goes before the stream would have read it
}

float value_at(const TensorView& host, std::int64_t index) {
  switch (host.dtype) {
    case DType::kF32:
      return host.as<const float>()[index];
    case DType::kBF16:
      return host.as<const BFloat16>()[index].to_float();
    case DType::kE4M3:
      return host.as<const Float8E4M3>()[index].to_float();
    default:
      throw InvalidArgument("no float values in " + describe(host));
  }
}

void set_value(const TensorView& host, std::int64_t index, float value) {
  switch (host.dtype) {
    case DType::kF32:
      host.as<float>()[index] = value;
      return;
    case DType::kBF16:
      host.as<BFloat16>()[index] = BFloat16::from_float(value);
      return;
    case DType::kE4M3:
      host.as<Float8E4M3>()[index] = Float8E4M3::from_float(value);
      return;
    default:
      throw InvalidArgument("no float values in " + describe(host));
  }
}

void map_values(const TensorView& tensor, Stream stream,
                const std::function<float(float value, std::int64_t index)>& change) {
  edit_tensor(tensor, stream, [&](const TensorView& host) {
    for (std::int64_t i = 0; i < host.elements(); ++i) {
      set_value(host, i, change(value_at(host, i), i));
    }
  });
}

std::unique_ptr<OpsDecorator> OpFault::decorate(int rank, const Ops& next) const {
  if (!injected_on(rank_, rank)) return nullptr;
  return std::make_unique<FaultyOps>(next, make_());
}

std::unique_ptr<Collective> CollectiveFault::decorate(int rank, Collective& next) const {
  if (!injected_on(rank_, rank)) return nullptr;
  return std::make_unique<FaultyCollective>(next, make_());
}

}  // namespace mladcp
