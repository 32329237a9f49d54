// Element types of tensors that cross an interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mladcp {

enum class DType : std::uint8_t { kF32, kF64, kBF16, kE4M3, kI32, kI64, kBytes };

constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
    case DType::kBytes:
      return 1;
  }
  return 0;
}

// The spelling used in messages, reports and on the command line.
constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kF64:
      return "fp64";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "e4m3";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kBytes:
      return "bytes";
  }
  return "?";
}

// fp8 is what people call e4m3. Throws InvalidArgument listing the known names.
DType dtype_from_name(std::string_view text);

}  // namespace mladcp
