#include "collectives/axis_in_front.h"

namespace mladcp {
namespace {

// `dim` first, the others behind it in their order.
TensorView axis_first(const TensorView& view, int dim) {
  TensorView moved = view;
  for (int d = dim; d > 0; --d) moved = moved.transposed(d, d - 1);
  return moved;
}

TensorView dense_at(void* data, const TensorView& like) {
  TensorView dense = like;
  dense.data = data;
  dense.strides = contiguous_strides(like.shape);
  return dense;
}

}  // namespace

void* Scratch::reserve(std::int64_t bytes, Stream stream) {
  if (memory_.empty() || memory_.view().bytes() < bytes) {
    if (!memory_.empty()) device_.synchronize(stream);
    memory_ = Tensor(device_, DType::kBytes, {bytes}, "collective scratch");
  }
  return memory_.view().data;
}

DenseCall AxisInFront::before(const CollectiveCall& call, int world_size, const TensorView& out,
                              const TensorView& in, Stream stream) {
  DenseCall dense;
  const TensorView from = axis_first(in, call.dim);
  if (from.is_contiguous()) {
    dense.in = from.data;
  } else {
    void* staged = in_scratch_.reserve(from.bytes(), stream);
    in.device->copy_strided(dense_at(staged, from), from, stream);
    dense.in = staged;
  }
  const TensorView to = axis_first(out, call.dim);
  dense.out = to.is_contiguous() ? to.data : out_scratch_.reserve(to.bytes(), stream);
  dense.block_bytes = call.op == CollectiveOp::kAllGather ? in.bytes() : in.bytes() / world_size;
  return dense;
}

void AxisInFront::after(const CollectiveCall& call, const TensorView& out, const DenseCall& dense,
                        Stream stream) {
  const TensorView to = axis_first(out, call.dim);
  if (to.is_contiguous()) return;
  out.device->copy_strided(to, dense_at(dense.out, to), stream);
}

}  // namespace mladcp
