// One collective call as a test case: inputs every rank can compute, memory layouts that are not
// dense, and the output that the placement law demands, by brute force over its elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/collective.h"

namespace mladcp {

// How a tensor lies in memory; all but kDense leave holes, which must stay as they were.
enum class Layout { kDense, kPadded, kTransposed };

struct CollectiveCase {
  CollectiveOp op = CollectiveOp::kAllGather;
  Shape in_shape;
  int dim = 0;  // as passed; may be negative
  DType dtype = DType::kF32;
  Layout in_layout = Layout::kDense;
  Layout out_layout = Layout::kDense;
};

std::string describe(const CollectiveCase& test_case);

// A tensor inside a larger block of memory on `device`, every byte of which starts as kPoison.
class LaidOutTensor {
 public:
  static constexpr unsigned char kPoison = 0xA5;

  LaidOutTensor(Device& device, DType dtype, const Shape& shape, Layout layout, const char* name,
                Stream stream);

  const TensorView& view() const { return view_; }
  // Dense row-major bytes of the tensor.
  void write(const std::vector<unsigned char>& bytes, Stream stream);
  std::vector<unsigned char> read(Stream stream) const;
  // The number of bytes outside the tensor that are no longer kPoison.
  std::int64_t overwritten_bytes(Stream stream) const;

 private:
  std::vector<unsigned char> storage(Stream stream) const;
  std::vector<std::int64_t> element_offsets() const;  // bytes from the start of the storage

  Tensor storage_;
  TensorView view_;
};

// The shape that the law gives the output.
Shape out_shape(const CollectiveCase& test_case, int world_size);
// Dense bytes of rank's input. Movement: any bit pattern, NaN included. Sums: small integers whose
// sums are exact in any order.
std::vector<unsigned char> input_bytes(const CollectiveCase& test_case, int rank);
// Dense bytes of rank's output, element by element from the laws of core/collective.h.
std::vector<unsigned char> expected_bytes(const CollectiveCase& test_case, int rank,
                                          int world_size);

// Makes the call on this rank and says what was wrong with the outcome; empty: nothing.
std::string check_case(const CollectiveCase& test_case, Collective& collective, Device& device,
                       Stream stream);

}  // namespace mladcp
