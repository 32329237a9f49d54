#include "core/dtype.h"

#include <array>
#include <string>

#include "core/error.h"

namespace mladcp {

DType dtype_from_name(std::string_view text) {
  constexpr std::array kAll = {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3,
                               DType::kI32, DType::kI64, DType::kBytes};
  if (text == "fp8") return DType::kE4M3;
  std::string known;
  for (const DType dtype : kAll) {
    if (name(dtype) == text) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(name(dtype));
  }
  throw InvalidArgument("dtype '" + std::string(text) + "' is unknown; use one of " + known +
                        ", fp8 (e4m3)");
}

}  // namespace mladcp
