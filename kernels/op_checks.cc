#include "kernels/op_checks.h"

#include <string>

#include "core/error.h"
#include "core/forwarding_device.h"

namespace mladcp {

void expect_on(const CudaDevice& device, std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) {
    if (on_device(view, device)) continue;
    throw InvalidArgument(
        "tensor " + describe(view) + " lies on " +
        (view.device == nullptr ? "no device" : std::string(view.device->description())) +
        ", the operation runs on " + std::string(device.description()) +
        "; copy it with copied_to_device");
  }
}

void expect_dims(const TensorView& view, int rank) {
  if (view.rank() == rank) return;
  throw InvalidArgument("tensor " + describe(view) + ": expected " + std::to_string(rank) +
                        " dims");
}

void expect_fp32_or_bf16(const TensorView& view) {
  if (view.dtype == DType::kF32 || view.dtype == DType::kBF16) return;
  throw InvalidArgument("tensor " + describe(view) + ": expected dtype fp32 or bf16");
}

void expect_cache(const KvCache& cache, std::int64_t width) {
  expect_dims(cache.data, 3);
  expect_shape(cache.data, {cache.pages(), cache.page_size(), width});
  if (!cache.quantized()) expect_dtype(cache.data, DType::kBF16);
  expect_unit_last_stride(cache.data);
}

}  // namespace mladcp
