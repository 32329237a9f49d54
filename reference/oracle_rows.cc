#include "reference/oracle_rows.h"

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/float8_e4m3.h"

namespace mladcp {
namespace {

template <typename Element, typename ToDouble>
void load(double* values, const TensorView& view, std::int64_t offset, double factor,
          const ToDouble& to_double) {
  const auto* row = view.as<const Element>() + offset;
  const std::int64_t stride = view.strides[view.rank() - 1];
  for (std::int64_t i = 0; i < view.shape[view.rank() - 1]; ++i) {
    values[i] = factor * to_double(row[i * stride]);
  }
}

}  // namespace

void load_row_fp64(double* values, const TensorView& view, std::int64_t offset, double factor) {
  const auto widened = [](auto x) { return static_cast<double>(x.to_float()); };
  switch (view.dtype) {
    case DType::kF64:
      return load<double>(values, view, offset, factor, [](double x) { return x; });
    case DType::kF32:
      return load<float>(values, view, offset, factor, [](float x) { return double{x}; });
    case DType::kBF16:
      return load<BFloat16>(values, view, offset, factor, widened);
    case DType::kE4M3:
      return load<Float8E4M3>(values, view, offset, factor, widened);
    default:
      throw InvalidArgument("tensor " + describe(view) + ": expected a floating dtype");
  }
}

}  // namespace mladcp
