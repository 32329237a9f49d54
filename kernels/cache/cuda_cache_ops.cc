#include "kernels/cache/cache_write.h"
#include "kernels/context/context_gather.h"
#include "kernels/cuda_ops.h"
#include "kernels/device/cuda_error.h"
#include "kernels/op_checks.h"

namespace mladcp {

void CudaCacheOps::write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                         const TensorView& slots, Stream stream) {
  expect_on(device_, {cache.data, kv_c, k_pe, slots});
  expect_dims(kv_c, 2);
  expect_dims(k_pe, 2);
  const std::int64_t tokens = kv_c.shape[0];
  expect_dtype(kv_c, DType::kBF16);
  expect(k_pe, DType::kBF16, {tokens, k_pe.shape[1]});
  expect(slots, DType::kI64, {tokens});
  for (const TensorView& view : {kv_c, k_pe, slots}) expect_unit_last_stride(view);
  expect_cache(cache, kv_c.shape[1] + k_pe.shape[1]);
  const DeviceGuard guard(device_.index());
  launch_cache_write(cache, kv_c, k_pe, slots, stream);
}

void CudaCacheOps::gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                         const TensorView& block_table,
                                         const ContextChunkTensors& chunk, Stream stream) {
  expect_on(device_, {out, cache.data, block_table, chunk.cu_seq_lens, chunk.token_to_seq,
                      chunk.seq_starts});
  expect_dims(out, 2);
  expect_dtype(out, DType::kBF16);
  expect_cache(cache, out.shape[1]);
  expect_dims(block_table, 2);
  const std::int64_t requests = block_table.shape[0];
  expect_dtype(block_table, DType::kI32);
  expect(chunk.cu_seq_lens, DType::kI32, {requests + 1});
  expect(chunk.token_to_seq, DType::kI32, {out.shape[0]});
  expect(chunk.seq_starts, DType::kI32, {requests});
  for (const TensorView& view :
       {out, block_table, chunk.cu_seq_lens, chunk.token_to_seq, chunk.seq_starts}) {
    expect_unit_last_stride(view);
  }
  const DeviceGuard guard(device_.index());
  launch_gather_and_dequantize(out, cache, block_table, chunk, stream);
}

void CudaCacheOps::reorganise(const TensorView& out, const TensorView& gathered,
                              const TensorView& source_rows, Stream stream) {
  expect_on(device_, {out, gathered, source_rows});
  expect_dims(out, 2);
  expect_dims(gathered, 2);
  expect(out, DType::kBF16, {out.shape[0], gathered.shape[1]});
  expect_dtype(gathered, DType::kBF16);
  expect(source_rows, DType::kI32, {out.shape[0]});
  for (const TensorView& view : {out, gathered, source_rows}) expect_unit_last_stride(view);
  const DeviceGuard guard(device_.index());
  launch_reorganise(out, gathered, source_rows, stream);
}

}  // namespace mladcp
