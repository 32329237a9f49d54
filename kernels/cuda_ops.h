// The operations of core on one CUDA card. Every method checks its tensors by name before it
// launches anything; nothing allocates after construction. Kernels are chosen by card and shape at
// run time (docs/cuda.md).
#pragma once

#include <cstdint>
#include <string_view>

#include "core/ops.h"
#include "core/scheduler.h"
#include "kernels/device/cuda_device.h"
#include "kernels/gemm/blas.h"

namespace mladcp {

class CudaQueryOps final : public QueryOps {
 public:
  explicit CudaQueryOps(CudaDevice& device) : device_(device), blas_(device) {}

  void absorb(const TensorView& out, const TensorView& q_nope, const TensorView& w_uk,
              Stream stream) override;
  void concat(const TensorView& out, const TensorView& latent, const TensorView& rope,
              Stream stream) override;
  void concat_quantize(const TensorView& out, const TensorView& latent, const TensorView& rope,
                       float q_scale, Stream stream) override;
  // An fp32 latent is summed in plain fp32, a bf16 one by cuBLAS.
  void project_value(const TensorView& out, const TensorView& latent, const TensorView& w_uv,
                     Stream stream) override;
  void project_keys_values(const TensorView& key, const TensorView& value, const TensorView& rows,
                           const TensorView& w_uk, const TensorView& w_uv, Stream stream) override;

 private:
  CudaDevice& device_;
  Blas blas_;
};

class CudaCacheOps final : public CacheOps {
 public:
  explicit CudaCacheOps(CudaDevice& device) : device_(device) {}

  void write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
             const TensorView& slots, Stream stream) override;
  void gather_and_dequantize(const TensorView& out, const KvCache& cache,
                             const TensorView& block_table, const ContextChunkTensors& chunk,
                             Stream stream) override;
  void reorganise(const TensorView& out, const TensorView& gathered, const TensorView& source_rows,
                  Stream stream) override;

 private:
  CudaDevice& device_;
};

// Which decode kernels may be chosen: kGeneric leaves the Hopper ones out, to compare them.
enum class DecodeKernels : std::uint8_t { kBest, kGeneric };

class CudaAttentionOps final : public AttentionOps {
 public:
  explicit CudaAttentionOps(CudaDevice& device, DecodeKernels kernels = DecodeKernels::kBest)
      : device_(device), kernels_(kernels) {}

  std::int64_t num_parts(const ScheduleShape& shape) const override;
  // What schedules for this shape are built with: the multiprocessors of this device, and what
  // starting a request costs its kernels.
  ScheduleParams schedule_params(const ScheduleShape& shape) const;
  void build_schedule(const ScheduleTensors& schedule, const TensorView& lengths,
                      const ScheduleShape& shape, Stream stream) override;

  // Query and cache (bf16, bf16), (e4m3, e4m3) or (bf16, e4m3); L 512, R 64; pages of 16, 32, 64 or
  // 128; rows that start at multiples of 16 bytes. Unsupported otherwise. Rows that see nothing get
  // out 0, lse -inf.
  void decode(const TensorView& out, const TensorView& lse, const Query& query,
              const KvCache& cache, const DecodeRows& rows, const ScheduleTensors& schedule,
              const DecodeScales& scales, const TensorView& workspace, Stream stream) override;
  std::int64_t decode_workspace_bytes(std::int64_t rows, const ScheduleShape& shape,
                                      std::int64_t latent) const override;

  // Which NumericsProfile (reference/numerics_profile.h) bounds such a decode here: the kernel is
  // chosen by these.
  std::string_view decode_profile(DType query, DType cache, std::int64_t page,
                                  const ScheduleShape& shape) const;

  // P + R 192, Vd 128; Unsupported otherwise.
  void causal(const TensorView& out, const TensorView& lse, const TensorView& query,
              const TensorView& key, const TensorView& value, const TensorView& cu_rows,
              std::int64_t max_rows, float softmax_scale, Stream stream) override;
  void context(const TensorView& out, const TensorView& lse, const TensorView& query,
               const TensorView& key, const TensorView& value, const TensorView& cu_rows,
               std::int64_t max_rows, const TensorView& cu_context, float softmax_scale,
               Stream stream) override;

 private:
  bool runs_hopper_kernels() const;

  CudaDevice& device_;
  DecodeKernels kernels_;
};

class CudaCombineOps final : public CombineOps {
 public:
  explicit CudaCombineOps(CudaDevice& device) : device_(device) {}

  void mask_empty(const TensorView& out, const TensorView& lse, const TensorView& visible,
                  Stream stream) override;
  void correct(const TensorView& corrected, const TensorView& partial, const TensorView& lses,
               int rank, Stream stream) override;
  void merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
             const TensorView& lses, Stream stream) override;
  void merge_into(const TensorView& running, const TensorView& running_lse,
                  const TensorView& partial, const TensorView& partial_lse, Stream stream) override;
  void pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
            Stream stream) override;
  void unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
              Stream stream) override;
  void round_to(const TensorView& out, const TensorView& value, Stream stream) override;

 private:
  CudaDevice& device_;
};

// One per rank: cuBLAS' handle serves one thread at a time.
struct CudaOps {
  explicit CudaOps(CudaDevice& device, DecodeKernels kernels = DecodeKernels::kBest)
      : query(device), cache(device), attention(device, kernels), combine(device) {}

  Ops ops() { return {query, cache, attention, combine}; }

  CudaQueryOps query;
  CudaCacheOps cache;
  CudaAttentionOps attention;
  CudaCombineOps combine;
};

}  // namespace mladcp
