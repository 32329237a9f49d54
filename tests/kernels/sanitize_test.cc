// One small launch of every kernel, for compute-sanitizer (ctest label `sanitize`): results are
// judged elsewhere.
#include <vector>

#include "tests/kernels/decode_case.h"
#include "tests/kernels/group_case.h"

namespace mladcp {
namespace {

class SmallStepTest : public DecodeGpuTest {};

TEST_F(SmallStepTest, Decode) {
  CudaAttentionOps generic(device(), DecodeKernels::kGeneric);
  CudaAttentionOps best(device());
  for (const auto& [query, cache] :
       {std::pair{DType::kBF16, DType::kBF16}, std::pair{DType::kE4M3, DType::kE4M3},
        std::pair{DType::kBF16, DType::kE4M3}}) {
    for (const int heads : {8, 40, 72}) {  // tiles of 16 and 64 rows, and a pair of them
      AttentionProblemShape shape = full_width(query, cache);
      shape.heads = heads;
      shape.page = 64;
      // Two parts: splits, more pieces than any ring holds, and a walk whose maximum moves.
      shape.visible = {{150, 65}, {0}, {1}, {700}, {64}, {130}, {2}, {63}, {3}};
      const AttentionProblem p = make_attention_problem(shape, 2);
      for (AttentionOps* ops :
           {static_cast<AttentionOps*>(&generic), static_cast<AttentionOps*>(&best)}) {
        const DecodeOnGpu g = upload_problem(p, *ops);
        const Result result = run(p, g, *ops);
        device().synchronize(stream());
      }
    }
  }
}

// cuBLAS' Hopper kernels store by TMA, which initcheck (2025.3) does not track: it would call what
// they wrote uninitialised. Plain bytes written before, NaN in every format, keep its eyes on all
// that our kernels write.
void write_products(CudaDevice& device, GpuGroup& group, std::int64_t ranks) {
  for (std::int64_t r = 0; r < ranks; ++r) {
    const DecodeWorkspace& workspace = group.rank(r).workspace;
    for (const TensorView& product : {workspace.absorbed(), workspace.output()}) {
      device.fill_bytes(product.data, 0xFF, static_cast<std::size_t>(product.bytes()),
                        group.streams()[static_cast<std::size_t>(r)]);
    }
  }
}

TEST_F(SmallStepTest, GroupOfTwo) {
  for (const Combine combine : {Combine::kAllGatherReduceScatter, Combine::kAllToAllPacked}) {
    GroupShape shape;
    shape.config.tp = shape.config.dcp = 2;
    shape.config.heads = 8;
    shape.config.combine = combine;
    shape.requests = {{70, 1}, {3, 2}};
    const GroupProblem p = make_group_problem(shape);
    GpuGroup group(device(), p, ops_of_rank);
    write_products(device(), group, p.world());
    group.enqueue();
    group.outputs();
  }
}

TEST_F(SmallStepTest, Prefill) {
  CudaOps& ops = ops_of_rank(0);
  Numbers numbers(1);
  const std::int64_t rows = 67, heads = 2, keys = 70;
  const Tensor query = upload(random_tensor(DType::kBF16, {rows, heads, 192}, "query", numbers));
  const Tensor w_uk = upload(random_tensor(DType::kBF16, {heads, 128, 512}, "w_uk", numbers));
  const Tensor w_uv = upload(random_tensor(DType::kBF16, {heads, 512, 128}, "w_uv", numbers));
  const Tensor cache = upload(random_tensor(DType::kE4M3, {3, 64, 576}, "cache", numbers));
  const Tensor table = upload(index_tensor(std::vector<std::int32_t>{2, 0}, "block_table"));
  const Tensor cu_rows = upload(index_tensor(std::vector<std::int32_t>{0, 67}, "cu_rows"));
  const Tensor cu_keys = upload(index_tensor(std::vector<std::int32_t>{0, 70}, "cu_context"));
  const Tensor seq = upload(index_tensor(std::vector<std::int32_t>(70, 0), "token_to_seq"));
  const Tensor starts = upload(index_tensor(std::vector<std::int32_t>{5}, "seq_starts"));
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < 70; ++i) order.push_back(69 - i);
  const Tensor source = upload(index_tensor(order, "source_rows"));
  const Tensor local = poisoned(DType::kBF16, {keys, 576}, "local rows");
  const Tensor context = poisoned(DType::kBF16, {keys, 576}, "context rows");
  const Tensor key = poisoned(DType::kBF16, {keys, heads, 192}, "key");
  const Tensor value = poisoned(DType::kBF16, {keys, heads, 128}, "value");
  const Tensor out = poisoned(DType::kF32, {rows, heads, 128}, "out");
  const Tensor lse = poisoned(DType::kF32, {rows, heads}, "lse");
  const Tensor partial = poisoned(DType::kF32, {rows, heads, 128}, "partial");
  const Tensor partial_lse = poisoned(DType::kF32, {rows, heads}, "partial lse");
  ops.cache.gather_and_dequantize(local, {cache, 0.5F}, table.view().reshaped({1, 2}),
                                  {cu_keys, seq, starts, {}}, stream());
  ops.cache.reorganise(context, local, source, stream());
  ops.query.project_keys_values(key, value, context, w_uk, w_uv, stream());
  ops.attention.causal(out, lse, query, key.view().narrow(0, 0, rows),
                       value.view().narrow(0, 0, rows), cu_rows, rows, 0.07F, stream());
  ops.attention.context(partial, partial_lse, query, key, value, cu_rows, rows, cu_keys, 0.07F,
                        stream());
  ops.combine.merge_into(out, lse, partial, partial_lse, stream());
  const Tensor rounded = poisoned(DType::kBF16, {rows, heads, 128}, "rounded");
  ops.combine.round_to(rounded, out, stream());
  device().synchronize(stream());
}

}  // namespace
}  // namespace mladcp
