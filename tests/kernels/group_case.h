// A whole DCP group, every rank with its shard: the same problem on host memory with CpuOps and on
// one card with CudaOps.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "collectives/in_process_group.h"
#include "core/decode.h"
#include "reference/cpu_ops.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {

struct GroupShape {
  ParallelConfig config;
  std::vector<StepRequest> requests;
  std::int64_t columns = 0;  // of the block table; 0: what the lengths need
  std::uint64_t seed = 1;
};

// Everything global, on the host.
struct GroupProblem {
  GroupShape shape;
  MlaDims dims;
  Tensor q_nope, q_rope, kv_c, k_pe, w_uk, w_uv;
  BlockTable table;
  std::int64_t pages = 0;
  std::vector<Tensor> caches;  // per rank [pages, page, D], NaN where no token is

  std::int64_t world() const { return shape.config.dcp; }
  DecodePlan plan(std::int64_t rank) const {
    return plan_decode(shape.config.sharding(), rank, shape.config.page_size, shape.requests,
                       table);
  }
};

inline std::int64_t rows_of(const std::vector<StepRequest>& requests) {
  std::int64_t rows = 0;
  for (const StepRequest& request : requests) rows += request.q_len;
  return rows;
}

// The prompt of request b at position p, as cache codes or bf16: the same whoever keeps it.
inline void fill_cache_row(const KvCache& cache, std::int64_t slot, std::size_t b, std::int64_t p) {
  Numbers numbers(1000003 * (b + 1) + static_cast<std::uint64_t>(p));
  const std::int64_t at = cache_row_offset(slot / cache.page_size(), slot % cache.page_size(),
                                           cache.data.strides[0], cache.data.strides[1]);
  for (std::int64_t d = 0; d < cache.data.shape[2]; ++d) {
    const float value = numbers.normal(0.4F);
    if (cache.quantized()) {
      cache.data.as<Float8E4M3>()[at + d] = Float8E4M3::from_float(value);
    } else {
      cache.data.as<BFloat16>()[at + d] = BFloat16::from_float(value);
    }
  }
}

inline GroupProblem make_group_problem(const GroupShape& shape) {
  GroupProblem p;
  p.shape = shape;
  const ParallelConfig& c = shape.config;
  const std::int64_t rows = rows_of(shape.requests);
  const std::int64_t heads = c.gathered_heads();
  Numbers numbers(shape.seed);
  p.q_nope = random_tensor(DType::kBF16, {rows, heads, p.dims.nope}, "q_nope", numbers, 0.1F);
  p.q_rope = random_tensor(DType::kBF16, {rows, heads, p.dims.rope}, "q_rope", numbers, 0.1F);
  p.kv_c = random_tensor(DType::kBF16, {rows, p.dims.latent}, "kv_c", numbers, 0.4F);
  p.k_pe = random_tensor(DType::kBF16, {rows, p.dims.rope}, "k_pe", numbers, 0.4F);
  p.w_uk = random_tensor(DType::kBF16, {heads, p.dims.nope, p.dims.latent}, "w_uk", numbers, 0.0F,
                         0.09F);
  p.w_uv = random_tensor(DType::kBF16, {heads, p.dims.latent, p.dims.value}, "w_uv", numbers, 0.0F,
                         0.05F);
  std::int64_t columns = std::max<std::int64_t>(shape.columns, 1);
  for (const StepRequest& request : shape.requests) {
    columns = std::max(columns, table_columns(c.sharding(), request.length, c.page_size));
  }
  p.table.columns = columns;
  const auto requests = static_cast<std::int64_t>(shape.requests.size());
  p.pages = requests * columns;
  p.table.pages.resize(static_cast<std::size_t>(p.pages));
  std::iota(p.table.pages.begin(), p.table.pages.end(), 0);
  std::shuffle(p.table.pages.begin(), p.table.pages.end(), numbers.engine());
  for (std::int64_t rank = 0; rank < c.dcp; ++rank) {
    p.caches.push_back(host_tensor(c.kv_dtype, {p.pages, c.page_size, p.dims.row()}, "cache"));
    poison(p.caches.back());
    for (std::size_t b = 0; b < shape.requests.size(); ++b) {
      const StepRequest& request = shape.requests[b];
      for (std::int64_t pos = 0; pos < request.length - request.q_len; ++pos) {
        const std::int64_t slot = slot_of(c.sharding(), pos, rank, c.page_size,
                                          p.table.row(static_cast<std::int64_t>(b)));
        if (slot >= 0) fill_cache_row({p.caches.back(), c.k_scale}, slot, b, pos);
      }
    }
  }
  return p;
}

// One rank's tensors on `device`.
struct RankState {
  RankState(Device& device, Stream stream, const GroupProblem& p, std::int64_t rank,
            const AttentionOps& attention, const DecodeLimits& limits)
      : workspace(device, p.shape.config, p.dims, attention, limits) {
    const ParallelConfig& c = p.shape.config;
    const std::int64_t h = c.local_heads();
    const std::int64_t first = c.replicate_query ? 0 : rank * h;
    const std::int64_t query_heads = c.replicate_query ? c.gathered_heads() : h;
    const bool all_values = c.project_before_merge;
    const auto upload = [&](const TensorView& view) {
      return copied_to_device(copied_to_host(view, kHostStream), device, stream);
    };
    q_nope = upload(p.q_nope.view().narrow(1, first, query_heads));
    q_rope = upload(p.q_rope.view().narrow(1, first, query_heads));
    kv_c = upload(p.kv_c);
    k_pe = upload(p.k_pe);
    w_uk = upload(p.w_uk.view().narrow(0, first, query_heads));
    w_uv = upload(
        p.w_uv.view().narrow(0, all_values ? 0 : rank * h, all_values ? c.gathered_heads() : h));
    cache = upload(p.caches[static_cast<std::size_t>(rank)]);
    workspace.load(p.plan(rank), stream);
  }

  DecodeInputs inputs(float k_scale) const {
    return {q_nope.view(), q_rope.view(),          kv_c.view(), k_pe.view(), w_uk.view(),
            w_uv.view(),   {cache.view(), k_scale}};
  }

  Tensor q_nope, q_rope, kv_c, k_pe, w_uk, w_uv, cache;
  DecodeWorkspace workspace;
};

constexpr float kGroupSoftmaxScale = 0.0721688F;

inline DecodeLimits limits_of(const GroupProblem& p) {
  DecodeLimits limits{rows_of(p.shape.requests), static_cast<std::int64_t>(p.shape.requests.size()),
                      p.table.columns, 1};
  for (const StepRequest& request : p.shape.requests)
    limits.q_len = std::max(limits.q_len, request.q_len);
  return limits;
}

// The step's output of every rank, on the host.
inline std::vector<Tensor> run_on_host(const GroupProblem& p) {
  std::vector<Tensor> outputs(static_cast<std::size_t>(p.world()));
  InProcessGroup group(static_cast<int>(p.world()));
  group.run([&](Collective& collective) {
    CpuOps ops(2);
    RankState state(host_device(), kHostStream, p, collective.rank(), ops.attention, limits_of(p));
    decode(p.shape.config, kGroupSoftmaxScale, state.inputs(p.shape.config.k_scale),
           state.workspace, ops.ops(), collective, kHostStream);
    outputs[static_cast<std::size_t>(collective.rank())] =
        copied_to_host(state.workspace.output(), kHostStream);
  });
  return outputs;
}

// N ranks on one card, kept so that steps can be repeated and captured.
class GpuGroup {
 public:
  // ops_of_rank(r): the operations of rank r.
  template <typename OpsOfRank>
  GpuGroup(CudaDevice& device, const GroupProblem& p, const OpsOfRank& ops_of_rank)
      : device_(device), problem_(p), group_(static_cast<int>(p.world()), {}, device) {
    for (std::int64_t rank = 0; rank < p.world(); ++rank) {
      streams_.push_back(device.create_stream());
      ops_.push_back(&ops_of_rank(static_cast<std::size_t>(rank)));
      ranks_.push_back(std::make_unique<RankState>(device, streams_.back(), p, rank,
                                                   ops_.back()->attention, limits_of(p)));
    }
  }
  ~GpuGroup() {
    ranks_.clear();
    for (const Stream stream : streams_) device_.destroy_stream(stream);
  }
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  const std::vector<Stream>& streams() const { return streams_; }
  RankState& rank(std::int64_t r) { return *ranks_[static_cast<std::size_t>(r)]; }

  // Enqueues one step on every rank's stream; nothing is waited for.
  void enqueue() {
    group_.run([&](Collective& collective) {
      const auto r = static_cast<std::size_t>(collective.rank());
      decode(problem_.shape.config, kGroupSoftmaxScale,
             ranks_[r]->inputs(problem_.shape.config.k_scale), ranks_[r]->workspace, ops_[r]->ops(),
             collective, streams_[r]);
    });
  }

  std::vector<Tensor> outputs() {
    std::vector<Tensor> result;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      result.push_back(copied_to_host(ranks_[r]->workspace.output(), streams_[r]));
    }
    return result;
  }

  // Contents of another step of the same shape: plan, caches, query, new tokens.
  void load(const GroupProblem& p) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const RankState fresh(device_, streams_[r], p, static_cast<std::int64_t>(r),
                            ops_[r]->attention, limits_of(p));
      const auto copy = [&](const Tensor& to, const Tensor& from) {
        device_.copy_strided(to, from, streams_[r]);
      };
      copy(ranks_[r]->q_nope, fresh.q_nope);
      copy(ranks_[r]->q_rope, fresh.q_rope);
      copy(ranks_[r]->kv_c, fresh.kv_c);
      copy(ranks_[r]->k_pe, fresh.k_pe);
      copy(ranks_[r]->cache, fresh.cache);
      ranks_[r]->workspace.load(p.plan(static_cast<std::int64_t>(r)), streams_[r]);
      device_.synchronize(streams_[r]);
    }
  }

 private:
  CudaDevice& device_;
  const GroupProblem& problem_;
  InProcessGroup group_;
  std::vector<Stream> streams_;
  std::vector<CudaOps*> ops_;
  std::vector<std::unique_ptr<RankState>> ranks_;
};

}  // namespace mladcp
