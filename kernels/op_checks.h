// Checks every CUDA operation makes before it launches: where a tensor lies, its rank, its rows.
#pragma once

#include <initializer_list>

#include "core/kv_cache.h"
#include "core/tensor.h"
#include "kernels/device/cuda_device.h"

namespace mladcp {

// InvalidArgument naming the tensor that lies elsewhere.
void expect_on(const CudaDevice& device, std::initializer_list<TensorView> views);

void expect_dims(const TensorView& view, int rank);

// InvalidArgument unless dtype is fp32 or bf16.
void expect_fp32_or_bf16(const TensorView& view);

// A cache `[pages, page, width]`, bf16 or e4m3, rows dense.
void expect_cache(const KvCache& cache, std::int64_t width);

}  // namespace mladcp
