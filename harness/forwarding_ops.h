// Decorators of the operation interfaces that hand every call on. A tap or a fault derives from one
// and overrides the method it looks at or breaks; production code carries neither.
#pragma once

#include "core/ops.h"

namespace mladcp {

class ForwardingQueryOps : public QueryOps {
 public:
  explicit ForwardingQueryOps(QueryOps& next) : next_(next) {}

  void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
              Stream stream) override {
    next_.absorb(out, q_nope, w_uk, stream);
  }
  void concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
              Stream stream) override {
    next_.concat(out, latent, rope, stream);
  }
  void concat_quantize(const TensorView& out, const TensorView& latent, const TensorView& rope,
                       float q_scale, Stream stream) override {
    next_.concat_quantize(out, latent, rope, q_scale, stream);
  }
  void project_value(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                     Stream stream) override {
    next_.project_value(out, latent, w_uv, stream);
  }
  void project_keys_values(const TensorView& key, const TensorView& value, const TensorView& rows,
                           const TensorView& w_uk, const TensorView& w_uv, Stream stream) override {
    next_.project_keys_values(key, value, rows, w_uk, w_uv, stream);
  }

 protected:
  QueryOps& next() const { return next_; }

 private:
  QueryOps& next_;
};

class ForwardingCacheOps : public CacheOps {
 public:
  explicit ForwardingCacheOps(CacheOps& next) : next_(next) {}

  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override {
    next_.write(cache, kv_c, k_pe, slots, stream);
  }
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override {
    next_.gather_and_dequantize(out, cache, block_table, chunk, stream);
  }
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override {
    next_.reorganise(out, gathered, source_rows, stream);
  }

 protected:
  CacheOps& next() const { return next_; }

 private:
  CacheOps& next_;
};

class ForwardingAttentionOps : public AttentionOps {
 public:
  explicit ForwardingAttentionOps(AttentionOps& next) : next_(next) {}

  std::int64_t num_parts(const ScheduleShape& shape) const override {
    return next_.num_parts(shape);
  }
  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override {
    next_.build_schedule(schedule, lengths, shape, stream);
  }
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override {
    next_.decode(out, lse, query, cache, rows, schedule, scales, workspace, stream);
  }
  std::int64_t decode_workspace_bytes(std::int64_t rows, const ScheduleShape& shape,
                                      std::int64_t latent) const override {
    return next_.decode_workspace_bytes(rows, shape, latent);
  }
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override {
    next_.causal(out, lse, query, key, value, cu_rows, max_rows, softmax_scale, stream);
  }
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override {
    next_.context(out, lse, query, key, value, cu_rows, max_rows, cu_context, softmax_scale,
                  stream);
  }

 protected:
  AttentionOps& next() const { return next_; }

 private:
  AttentionOps& next_;
};

class ForwardingCombineOps : public CombineOps {
 public:
  explicit ForwardingCombineOps(CombineOps& next) : next_(next) {}

  void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                  Stream stream) override {
    next_.mask_empty(out, lse, visible, stream);
  }
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override {
    next_.correct(corrected, partial, lses, rank, stream);
  }
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override {
    next_.merge(out, lse, partials, lses, stream);
  }
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse,
                  Stream stream) override {
    next_.merge_into(running, running_lse, partial, partial_lse, stream);
  }
  void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
            Stream stream) override {
    next_.pack(packed, partial, lse, stream);
  }
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override {
    next_.unpack(partials, lses, packed, stream);
  }
  void round_to(const TensorView& out, const TensorView& value, Stream stream) override {
    next_.round_to(out, value, stream);
  }

 protected:
  CombineOps& next() const { return next_; }

 private:
  CombineOps& next_;
};

}  // namespace mladcp
