// The one comparator: a tensor against expected values, each with its own bound.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mladcp {

// Values in row-major order. An element holds when |actual - value| <= bound; where value is not
// finite actual must be the same infinity, or NaN for NaN.
struct Expected {
  Shape shape;
  std::vector<double> value;
  std::vector<double> bound;
};

struct Comparison {
  std::string tensor;  // "lse fp32 [3, 16]"
  std::int64_t elements = 0;
  std::int64_t outside = 0;  // elements that do not hold
  // The worst element: the largest |actual - value| / bound; infinite where no bound excuses it.
  double worst_ratio = 0.0;
  Shape worst_index;
  double actual = 0.0;
  double expected = 0.0;
  double bound = 0.0;
  double largest_error = 0.0;  // absolute, over elements finite on both sides, as the next two
  double cosine = 1.0;
  double relative_rms = 0.0;  // of the error, relative to the expected values

  bool pass() const { return outside == 0; }
};

// Host tensors of any floating dtype and strides. InvalidArgument when the shapes differ.
Comparison compare(const TensorView& actual, const Expected& expected);

// Bit for bit, for data that only moves or is rounded exactly once: equal dtypes, any strides. A
// NaN equals itself; 0 and -0 differ.
Comparison compare_bits(const TensorView& actual, const TensorView& expected);

// One line: worst element, coordinates, both values, share outside, cosine, relative RMS.
std::string to_string(const Comparison& comparison);
std::ostream& operator<<(std::ostream& stream, const Comparison& comparison);

}  // namespace mladcp
