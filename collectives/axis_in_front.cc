#include "collectives/axis_in_front.h"

namespace mladcp {
namespace {

// [.., N * m, ..] seen as [N, .., m, ..].
TensorView rank_major(const TensorView& view, int dim, int world_size) {
  TensorView blocks = view.split(dim, world_size);
  for (int d = dim; d > 0; --d) blocks = blocks.transposed(d, d - 1);
  return blocks;
}

TensorView dense_at(void* data, const TensorView& like) {
  TensorView dense = like;
  dense.data = data;
  dense.strides = contiguous_strides(like.shape);
  return dense;
}

// The side of a call as the backend must see it: blocks of ranks first.
TensorView blocks_of_in(const CollectiveCall& call, const TensorView& in, int world_size) {
  return call.op == CollectiveOp::kReduceScatter ? rank_major(in, call.dim, world_size) : in;
}
TensorView blocks_of_out(const CollectiveCall& call, const TensorView& out, int world_size) {
  return call.op == CollectiveOp::kAllGather ? rank_major(out, call.dim, world_size) : out;
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
  const TensorView in_blocks = blocks_of_in(call, in, world_size);
  if (in_blocks.is_contiguous()) {
    dense.in = in_blocks.data;
  } else {
    void* staged = in_scratch_.reserve(in_blocks.bytes(), stream);
    in.device->copy_strided(dense_at(staged, in_blocks), in_blocks, stream);
    dense.in = staged;
  }
  const TensorView out_blocks = blocks_of_out(call, out, world_size);
  dense.out = out_blocks.is_contiguous() ? out_blocks.data
                                         : out_scratch_.reserve(out_blocks.bytes(), stream);
  dense.block_bytes = call.op == CollectiveOp::kAllGather ? in.bytes() : in.bytes() / world_size;
  return dense;
}

void AxisInFront::after(const CollectiveCall& call, int world_size, const TensorView& out,
                        const DenseCall& dense, Stream stream) {
  const TensorView out_blocks = blocks_of_out(call, out, world_size);
  if (out_blocks.is_contiguous()) return;
  out.device->copy_strided(out_blocks, dense_at(dense.out, out_blocks), stream);
}

}  // namespace mladcp
