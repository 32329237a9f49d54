// A decode problem of the host tests on the GPU: uploaded with aligned, strided cache rows, run
// through CudaAttentionOps.
#pragma once

#include <algorithm>

#include "tests/kernels/decode_judge.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {

struct DecodeOnGpu {
  Tensor query, cache_storage, request, visible, row_begin, lengths, block_table, parts, num_splits,
      workspace;
  TensorView cache;
  float k_scale = 1.0F;
  std::int64_t q_len = 1;
  QueryKind kind = QueryKind::kTensor;
  std::int64_t latent = 512;

  KvCache kv_cache() const { return {cache, k_scale}; }
  DecodeRows rows() const { return {request, visible, row_begin, lengths, block_table, q_len}; }
  ScheduleTensors schedule() const { return {parts, num_splits}; }
  Query the_query() const {
    if (kind == QueryKind::kTensor) return query.view();
    const std::int64_t rope = query.view().size(2) - latent;
    return QueryPair{query.view().narrow(2, 0, latent), query.view().narrow(2, latent, rope)};
  }
};

class DecodeGpuTest : public GpuTest {
 protected:
  // `pad` elements lie between cache rows: a cache row may be part of a wider one.
  DecodeOnGpu upload_problem(const AttentionProblem& p, AttentionOps& ops, std::int64_t pad = 16) {
    DecodeOnGpu g;
    g.query = upload(p.query);
    const TensorView rows = p.cache().data;
    Shape wide = rows.shape;
    wide[2] += pad;
    g.cache_storage = poisoned(rows.dtype, wide, "cache");
    g.cache = g.cache_storage.view().narrow(2, 0, rows.shape[2]);
    const Tensor dense = upload(copied_to_host(rows, kHostStream));
    device().copy_strided(g.cache, dense, stream());
    g.request = upload(p.request);
    g.visible = upload(p.visible);
    g.row_begin = upload(p.row_begin);
    g.lengths = upload(p.lengths);
    g.block_table = upload(p.block_table);
    g.parts = upload(p.parts);
    g.num_splits = upload(p.num_splits);
    g.k_scale = p.shape.k_scale;
    for (const auto& of_request : p.shape.visible) {
      g.q_len = std::max(g.q_len, static_cast<std::int64_t>(of_request.size()));
    }
    g.kind = p.shape.query_kind;
    g.latent = p.shape.latent;
    const std::int64_t requests = p.lengths.shape()[0];
    const std::int64_t splits = requests + p.parts.shape()[0];
    const std::int64_t bytes = std::max(
        ops.decode_workspace_bytes(p.rows(), {p.shape.heads, g.q_len}, 512),
        splits * g.q_len * p.shape.heads * 513 * 4 + 1024 + p.rows() * p.shape.heads * 576 * 2);
    g.workspace = poisoned(DType::kBytes, {bytes}, "workspace");
    return g;
  }

  struct Result {
    Tensor out, lse;
  };
  Result run(const AttentionProblem& p, const DecodeOnGpu& g, AttentionOps& ops) {
    Result result{poisoned(DType::kBF16, {p.rows(), p.shape.heads, p.shape.latent}, "out"),
                  poisoned(DType::kF32, {p.rows(), p.shape.heads}, "lse")};
    ops.decode(result.out, result.lse, g.the_query(), g.kv_cache(), g.rows(), g.schedule(),
               p.scales(), g.workspace, stream());
    return result;
  }

  double expect_decodes(const AttentionProblem& p, CudaAttentionOps& ops,
                        std::int64_t most_heads = 1 << 20) {
    const DecodeOnGpu g = upload_problem(p, ops);
    const Result result = run(p, g, ops);
    const std::int64_t step =
        std::max<std::int64_t>(1, (p.shape.heads + most_heads - 1) / most_heads);
    return expect_within_bounds(download(result.out), download(result.lse),
                                expected_attention(p, profile_of(p, ops), step), step);
  }

  static const NumericsProfile& profile_of(const AttentionProblem& p, const CudaAttentionOps& ops) {
    std::size_t q_len = 1;
    for (const auto& of_request : p.shape.visible) q_len = std::max(q_len, of_request.size());
    return profile_from_name(ops.decode_profile(p.shape.query_dtype, p.shape.cache_dtype,
                                                p.shape.page,
                                                {p.shape.heads, static_cast<std::int64_t>(q_len)}));
  }
};

inline AttentionProblemShape full_width(DType query, DType cache) {
  AttentionProblemShape shape;
  shape.query_dtype = query;
  shape.cache_dtype = cache;
  shape.latent = 512;
  shape.rope = 64;
  shape.softmax_scale = 0.0417F;
  shape.sigma = 1.0F;
  if (cache == DType::kE4M3) shape.k_scale = 0.75F;
  if (query == DType::kE4M3) shape.q_scale = 1.25F;
  return shape;
}

}  // namespace mladcp
