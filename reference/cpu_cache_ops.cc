#include "reference/cpu_cache_ops.h"

#include <span>
#include <string>
#include <vector>

#include "core/conversions.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/host_rows.h"

namespace mladcp {
namespace {

void expect_slots_inside(const TensorView& slots, const KvCache& cache) {
  const std::int64_t rows = cache.pages() * cache.page_size();
  for (std::int64_t t = 0; t < slots.size(0); ++t) {
    const std::int64_t slot = index_at(slots, t);
    if (slot < rows) continue;
    throw InvalidArgument("tensor " + describe(slots) + ": slots[" + std::to_string(t) + "] = " +
                          std::to_string(slot) + " leaves the cache " + describe(cache.data) +
                          " of " + std::to_string(rows) + " rows; check the block table");
  }
}

}  // namespace

void CpuCacheOps::write(const KvCache& cache, const TensorView& kv_c, const TensorView& k_pe,
                        const TensorView& slots, Stream) {
  const std::int64_t tokens = kv_c.size(0);
  const std::int64_t latent = kv_c.size(1);
  const std::int64_t width = latent + k_pe.size(1);
  for (const TensorView& view : {cache.data, kv_c, k_pe, slots}) expect_host(view);
  expect(kv_c, DType::kBF16, {tokens, latent});
  expect(k_pe, DType::kBF16, {tokens, k_pe.size(1)});
  expect(slots, DType::kI64, {tokens});
  expect_shape(cache.data, {cache.pages(), cache.page_size(), width});
  expect_unit_last_stride(cache.data);
  if (!cache.quantized()) expect_dtype(cache.data, DType::kBF16);
  expect_slots_inside(slots, cache);

  const TensorView latents = cache.data.narrow(2, 0, latent);
  const TensorView ropes = cache.data.narrow(2, latent, width - latent);
  std::vector<float> row(static_cast<std::size_t>(width));
  // Few tokens a step, and two of them may name one slot: one thread, in order.
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = index_at(slots, t);
    if (slot < 0) continue;
    const std::int64_t at = cache_row_offset(slot / cache.page_size(), slot % cache.page_size(),
                                             cache.data.strides[0], cache.data.strides[1]);
    if (cache.quantized()) {
      load_row(row.data(), kv_c, offset_of(kv_c, t));
      load_row(row.data() + latent, k_pe, offset_of(k_pe, t));
      quantize(std::span(cache.data.as<Float8E4M3>() + at, row.size()), std::span<const float>(row),
               cache.scale);
    } else {
      copy_row(latents, at, kv_c, offset_of(kv_c, t));
      copy_row(ropes, at, k_pe, offset_of(k_pe, t));
    }
  }
}

}  // namespace mladcp
