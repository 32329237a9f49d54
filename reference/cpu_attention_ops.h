// AttentionOps on the host: fp32 arithmetic (Eigen) on the stored formats, P kept in fp32.
#pragma once

#include "core/attention_ops.h"

namespace mladcp {

class CpuAttentionOps final : public AttentionOps {
 public:
  // The SMs of the device whose schedule the host follows: a request is cut where an H100 or H200
  // would cut it, so that edges between splits exist here too.
  static constexpr int kScheduledSms = 132;

  explicit CpuAttentionOps(int threads, int scheduled_sms = kScheduledSms)
      : threads_(threads), scheduled_sms_(scheduled_sms) {}

  std::int64_t num_parts(const ScheduleShape& shape) const override;
  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override;

  // Query pair (bf16), [T, H, D] bf16 or e4m3; cache bf16 or e4m3; an e4m3 query needs an e4m3
  // cache. Splits of a request are merged in split order. Never reads a cache row, or a block-table
  // entry, at or beyond the largest visible of the request. Rows that see nothing get out 0 and
  // lse -inf. InvalidArgument when a page index leaves the cache or the schedule is not one of
  // these lengths, before anything is written.
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override;
  std::int64_t decode_workspace_bytes(std::int64_t rows, const ScheduleShape& shape,
                                      std::int64_t latent) const override;

  // In cpu_prefill_attention.cc.
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override;
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override;

 private:
  int threads_;
  int scheduled_sms_;
};

}  // namespace mladcp
