#include "reference/host_rows.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/bfloat16.h"
#include "core/conversions.h"
#include "core/device.h"
#include "core/error.h"
#include "core/float8_e4m3.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(const TensorView& view, const std::string& expected) {
  throw InvalidArgument("tensor " + describe(view) + ": " + expected);
}

std::int64_t row_length(const TensorView& view) { return view.shape[view.rank() - 1]; }
std::int64_t row_stride(const TensorView& view) { return view.strides[view.rank() - 1]; }

template <typename Element>
void load_as(float* values, const TensorView& view, std::int64_t offset) {
  const auto* row = view.as<const Element>() + offset;
  const std::int64_t length = row_length(view);
  const std::int64_t stride = row_stride(view);
  const auto count = static_cast<std::size_t>(length);
  if (stride == 1) {
    convert(std::span<float>(values, count), std::span<const Element>(row, count));
  } else {
    for (std::int64_t i = 0; i < length; ++i) values[i] = row[i * stride].to_float();
  }
}

template <>
void load_as<float>(float* values, const TensorView& view, std::int64_t offset) {
  const auto* row = view.as<const float>() + offset;
  const std::int64_t length = row_length(view);
  const std::int64_t stride = row_stride(view);
  for (std::int64_t i = 0; i < length; ++i) values[i] = row[i * stride];
}

}  // namespace

void load_row(float* values, const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::kF32:
      return load_as<float>(values, view, offset);
    case DType::kBF16:
      return load_as<BFloat16>(values, view, offset);
    case DType::kE4M3:
      return load_as<Float8E4M3>(values, view, offset);
    default:
      refuse(view, "expected fp32, bf16 or e4m3");
  }
}

void store_row(const TensorView& view, std::int64_t offset, const float* values) {
  const std::int64_t length = row_length(view);
  const std::int64_t stride = row_stride(view);
  expect_float(view);
  if (view.dtype == DType::kF32) {
    auto* row = view.as<float>() + offset;
    for (std::int64_t i = 0; i < length; ++i) row[i * stride] = values[i];
    return;
  }
  auto* row = view.as<BFloat16>() + offset;
  const auto count = static_cast<std::size_t>(length);
  if (stride == 1) {
    convert(std::span<BFloat16>(row, count), std::span<const float>(values, count));
  } else {
    for (std::int64_t i = 0; i < length; ++i) row[i * stride] = BFloat16::from_float(values[i]);
  }
}

void copy_row(const TensorView& out, std::int64_t out_offset, const TensorView& in,
              std::int64_t in_offset) {
  const auto element = static_cast<std::int64_t>(size_bytes(in.dtype));
  auto* to = out.as<unsigned char>() + out_offset * element;
  const auto* from = in.as<const unsigned char>() + in_offset * element;
  const std::int64_t length = row_length(in);
  if (row_stride(out) == 1 && row_stride(in) == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(length * element));
    return;
  }
  for (std::int64_t i = 0; i < length; ++i) {
    std::memcpy(to + i * row_stride(out) * element, from + i * row_stride(in) * element,
                static_cast<std::size_t>(element));
  }
}

std::int64_t index_at(const TensorView& view, std::int64_t i) {
  const std::int64_t at = offset_of(view, i);
  if (view.dtype == DType::kI32) return view.as<const std::int32_t>()[at];
  if (view.dtype == DType::kI64) return view.as<const std::int64_t>()[at];
  refuse(view, "expected int32 or int64");
}

void expect_host(const TensorView& view) {
  if (view.device == nullptr || view.device->kind() != DeviceKind::kHost) {
    refuse(view, "must lie in host memory for the operations on the host");
  }
}

void expect_float(const TensorView& view) {
  if (view.dtype != DType::kF32 && view.dtype != DType::kBF16) {
    refuse(view, "expected dtype fp32 or bf16");
  }
}

void expect_rank(const TensorView& view, int rank) {
  if (view.rank() != rank) refuse(view, "expected " + std::to_string(rank) + " dims");
}

}  // namespace mladcp
