// For backends that know dense memory and no axes: brings the ranks' axis to the front.
#pragma once

#include <cstdint>

#include "core/collective.h"

namespace mladcp {

// Device memory that grows to the largest request and stays: after a first step, or a reserve(), a
// step allocates nothing and may be captured into a graph.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  // Growing waits for `stream`, which may still use the old memory.
  void* reserve(std::int64_t bytes, Stream stream);

 private:
  Device& device_;
  Tensor memory_;
};

// Dense memory of one call. A side lies there with the call's axis first and its other axes behind
// it in their order, whatever the tensor's strides are: ranks of different layouts understand each
// other. Block s of a side with N blocks belongs to rank s:
//   all_gather      in: 1 block      out: N blocks
//   reduce_scatter  in: N blocks     out: 1 block
//   all_to_all      in: N blocks     out: N blocks
struct DenseCall {
  void* out = nullptr;
  const void* in = nullptr;
  std::int64_t block_bytes = 0;
};

// Copies a side to scratch only where its tensor does not lie in that order already: a tensor
// [T, H, X] whose heads are gathered or scattered is best stored [H, T, X].
class AxisInFront {
 public:
  explicit AxisInFront(Device& device) : in_scratch_(device), out_scratch_(device) {}

  DenseCall before(const CollectiveCall& call, int world_size, const TensorView& out,
                   const TensorView& in, Stream stream);
  void after(const CollectiveCall& call, const TensorView& out, const DenseCall& dense,
             Stream stream);

 private:
  Scratch in_scratch_;
  Scratch out_scratch_;
};

// body(dense) moves the blocks; everything is ordered on `stream`.
template <typename Body>
void with_axis_in_front(AxisInFront& axis, const CollectiveCall& call, int world_size,
                        const TensorView& out, const TensorView& in, Stream stream,
                        const Body& body) {
  const DenseCall dense = axis.before(call, world_size, out, in, stream);
  body(dense);
  axis.after(call, out, dense, stream);
}

}  // namespace mladcp
