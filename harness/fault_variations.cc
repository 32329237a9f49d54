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

 private:
  const OpFunctions& functions_;
};

class FaultyOps final : public OpsDecorator {
 public:
  FaultyOps(const Ops& next, const OpFunctions& functions)
      : query_(next.query, functions),
        cache_(next.cache, functions),
        attention_(next.attention, functions),
        combine_(next.combine, functions) {}

  Ops ops() override { return {query_, cache_, attention_, combine_}; }

 private:
  FaultyQueryOps query_;
  FaultyCacheOps cache_;
  FaultyAttentionOps attention_;
  FaultyCombineOps combine_;
};

class FaultyCollective final : public ForwardingCollective {
 public:
  FaultyCollective(Collective& next, const CollectiveFault::Run& run)
      : ForwardingCollective(next), run_(run) {}

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    run_([this](const CollectiveCall& c, const TensorView& o, const TensorView& i,
                Stream s) { forward(c, o, i, s); },
         call, out, in, stream);
  }

  const CollectiveFault::Run& run_;
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
  return std::make_unique<FaultyOps>(next, functions_);
}

std::unique_ptr<Collective> CollectiveFault::decorate(int rank, Collective& next) const {
  if (!injected_on(rank_, rank)) return nullptr;
  return std::make_unique<FaultyCollective>(next, run_);
}

}  // namespace mladcp
