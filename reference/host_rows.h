// Rows of host tensors as fp32, and where they lie. Used by the operations of this folder alone.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace mladcp {

// The offset, in elements, of view[i, j, ..., 0]; leading indices as given, the rest 0.
inline std::int64_t offset_of(const TensorView& view, std::int64_t i) {
  return i * view.strides[0];
}
inline std::int64_t offset_of(const TensorView& view, std::int64_t i, std::int64_t j) {
  return i * view.strides[0] + j * view.strides[1];
}
inline std::int64_t offset_of(const TensorView& view, std::int64_t i, std::int64_t j,
                              std::int64_t k) {
  return offset_of(view, i, j) + k * view.strides[2];
}

// values[0 .. n) = the row of `view` that starts at `offset`, n = the last extent, any last stride.
// fp32, bf16 and e4m3 (the code's own value, no scale).
void load_row(float* values, const TensorView& view, std::int64_t offset);

// The inverse: rounds to nearest even for bf16; fp32 and bf16 only.
void store_row(const TensorView& view, std::int64_t offset, const float* values);

// The row's bytes, moved; equal dtypes and last extents, any last strides.
void copy_row(const TensorView& out, std::int64_t out_offset, const TensorView& in,
              std::int64_t in_offset);

// An index tensor's value: int32 or int64.
std::int64_t index_at(const TensorView& view, std::int64_t i);

// InvalidArgument unless the tensor lies in host memory.
void expect_host(const TensorView& view);
// InvalidArgument unless dtype is fp32 or bf16.
void expect_float(const TensorView& view);
// InvalidArgument unless view.rank() == rank.
void expect_rank(const TensorView& view, int rank);

}  // namespace mladcp
