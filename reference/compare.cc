#include "reference/compare.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <ostream>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "reference/oracle_rows.h"

namespace mladcp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Row-major, as fp64.
std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  const Tensor dense = copied_to_host(view, Stream{});
  const TensorView flat = dense.view().reshaped({view.elements()});
  if (!values.empty()) load_row_fp64(values.data(), flat, 0);
  return values;
}

Shape index_of(const Shape& shape, std::int64_t flat) {
  Shape index = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return index;
}

double ratio_of(double actual, double expected, double bound) {
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0.0;
  const double error = std::fabs(actual - expected);
  if (!std::isfinite(error) || !(bound > 0.0)) return kInfinity;
  return error / bound;
}

// Cosine and relative RMS as the elements pass by.
class Figures {
 public:
  void add(double actual, double expected) {
    if (!std::isfinite(actual) || !std::isfinite(expected)) return;
    const double error = actual - expected;
    largest_ = std::fmax(largest_, std::fabs(error));
    error_square_ += error * error;
    product_ += actual * expected;
    actual_square_ += actual * actual;
    expected_square_ += expected * expected;
  }
  void store(Comparison& comparison) const {
    comparison.largest_error = largest_;
    const double norms = std::sqrt(actual_square_) * std::sqrt(expected_square_);
    comparison.cosine = norms > 0.0 ? product_ / norms : (error_square_ > 0.0 ? 0.0 : 1.0);
    comparison.relative_rms = expected_square_ > 0.0 ? std::sqrt(error_square_ / expected_square_)
                              : error_square_ > 0.0  ? kInfinity
                                                     : 0.0;
  }

 private:
  double largest_ = 0.0, error_square_ = 0.0, product_ = 0.0, actual_square_ = 0.0,
         expected_square_ = 0.0;
};

struct Element {
  double actual, expected, bound, ratio;
};

template <typename ElementAt>
Comparison compare_elements(const TensorView& actual, const ElementAt& element_at) {
  Comparison comparison;
  comparison.tensor = describe(actual);
  comparison.elements = actual.elements();
  Figures figures;
  double worst = -1.0;
  for (std::int64_t i = 0; i < comparison.elements; ++i) {
    const Element e = element_at(static_cast<std::size_t>(i));
    figures.add(e.actual, e.expected);
    if (e.ratio > 1.0) ++comparison.outside;
    if (e.ratio <= worst) continue;
    worst = e.ratio;
    comparison.worst_ratio = e.ratio;
    comparison.worst_index = index_of(actual.shape, i);
    comparison.actual = e.actual;
    comparison.expected = e.expected;
    comparison.bound = e.bound;
  }
  figures.store(comparison);
  return comparison;
}

}  // namespace

Comparison compare(const TensorView& actual, const Expected& expected) {
  expect_shape(actual, expected.shape);
  const std::vector<double> values = values_of(actual);
  return compare_elements(actual, [&](std::size_t i) {
    const double ratio = ratio_of(values[i], expected.value[i], expected.bound[i]);
    return Element{values[i], expected.value[i], expected.bound[i], ratio};
  });
}

Comparison compare_bits(const TensorView& actual, const TensorView& expected) {
  expect(actual, expected.dtype, expected.shape);
  const Tensor a = copied_to_host(actual, Stream{});
  const Tensor b = copied_to_host(expected, Stream{});
  const bool is_float = actual.dtype == DType::kF32 || actual.dtype == DType::kF64 ||
                        actual.dtype == DType::kBF16 || actual.dtype == DType::kE4M3;
  const std::size_t width = size_bytes(actual.dtype);
  const std::vector<double> as = is_float ? values_of(a) : std::vector<double>();
  const std::vector<double> bs = is_float ? values_of(b) : std::vector<double>();
  return compare_elements(actual, [&](std::size_t i) {
    const auto* x = a.as<const unsigned char>() + i * width;
    const auto* y = b.as<const unsigned char>() + i * width;
    const double ratio = std::memcmp(x, y, width) == 0 ? 0.0 : kInfinity;
    // Integers are named by their lowest byte: enough to find them, and no figure is made of them.
    return is_float ? Element{as[i], bs[i], 0.0, ratio}
                    : Element{static_cast<double>(*x), static_cast<double>(*y), 0.0, ratio};
  });
}

std::string to_string(const Comparison& c) {
  if (c.elements == 0) return c.tensor + ": no elements";
  char text[400];
  std::snprintf(text, sizeof text,
                "%s: worst at %s: got %.9g, wanted %.9g, bound %.3g (ratio %.3g); %lld of %lld "
                "outside; cosine %.9f, relative RMS %.3g",
                c.tensor.c_str(), to_string(c.worst_index).c_str(), c.actual, c.expected, c.bound,
                c.worst_ratio, static_cast<long long>(c.outside),
                static_cast<long long>(c.elements), c.cosine, c.relative_rms);
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Comparison& comparison) {
  return stream << to_string(comparison);
}

}  // namespace mladcp
