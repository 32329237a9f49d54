#include "core/collective.h"

#include "core/error.h"

namespace mladcp {
namespace {

std::string context(const char* op, std::string_view stage, int rank) {
  return std::string(op) + " '" + std::string(stage) + "' on rank " + std::to_string(rank) + ": ";
}

void expect_same_dtype(const TensorView& out, const TensorView& in, const std::string& where) {
  if (out.dtype == in.dtype) return;
  throw InvalidArgument(where + "out is " + describe(out) + " but in is " + describe(in) +
                        "; give both one dtype");
}

void expect_out_shape(const TensorView& out, const Shape& wanted, const std::string& where) {
  if (out.shape == wanted) return;
  throw InvalidArgument(where + "out is " + describe(out) + ", expected shape " +
                        to_string(wanted));
}

int checked_dim(const TensorView& in, int dim, const std::string& where) {
  const int normalized = dim < 0 ? dim + in.rank() : dim;
  if (normalized >= 0 && normalized < in.rank()) return normalized;
  throw InvalidArgument(where + "dim " + std::to_string(dim) + " does not exist in " +
                        describe(in));
}

void append_if_different(std::string& text, const char* field, const std::string& a,
                         const std::string& b) {
  if (a == b) return;
  text += (text.empty() ? "" : ", ") + std::string(field) + " " + a + " against " + b;
}

}  // namespace

std::string_view name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

std::string describe(const CollectiveCall& call) {
  return std::string(name(call.op)) + " #" + std::to_string(call.sequence) + " '" +
         std::string(call.stage) + "' dim " + std::to_string(call.dim) + " " +
         std::string(name(call.dtype)) + " " + to_string(call.in_shape) + " -> " +
         to_string(call.out_shape);
}

std::string difference(const CollectiveCall& a, const CollectiveCall& b) {
  std::string text;
  append_if_different(text, "op", std::string(name(a.op)), std::string(name(b.op)));
  append_if_different(text, "sequence", std::to_string(a.sequence), std::to_string(b.sequence));
  append_if_different(text, "stage", std::string(a.stage), std::string(b.stage));
  append_if_different(text, "dim", std::to_string(a.dim), std::to_string(b.dim));
  append_if_different(text, "dtype", std::string(name(a.dtype)), std::string(name(b.dtype)));
  append_if_different(text, "in_shape", to_string(a.in_shape), to_string(b.in_shape));
  append_if_different(text, "out_shape", to_string(a.out_shape), to_string(b.out_shape));
  return text;
}

void Collective::all_gather(const TensorView& out, const TensorView& in, int dim, Stream stream,
                            std::string_view stage) {
  const std::string where = context("all_gather", stage, rank());
  dim = checked_dim(in, dim, where);
  expect_same_dtype(out, in, where);
  Shape wanted = in.shape;
  wanted[dim] *= world_size();
  expect_out_shape(out, wanted, where);
  run({CollectiveOp::kAllGather, dim, in.dtype, in.shape, out.shape, stage, next_sequence_++}, out,
      in, stream);
}

void Collective::reduce_scatter(const TensorView& out, const TensorView& in, int dim, Stream stream,
                                std::string_view stage) {
  const std::string where = context("reduce_scatter", stage, rank());
  dim = checked_dim(in, dim, where);
  expect_same_dtype(out, in, where);
  if (in.dtype != DType::kF32 && in.dtype != DType::kBF16) {
    throw InvalidArgument(where + "cannot add " + describe(in) +
                          "; reduce fp32 or bf16 (dequantise before the reduction)");
  }
  if (in.shape[dim] % world_size() != 0) {
    throw InvalidArgument(where + "dim " + std::to_string(dim) + " of " + describe(in) +
                          " is not divisible by " + std::to_string(world_size()) + " ranks");
  }
  Shape wanted = in.shape;
  wanted[dim] /= world_size();
  expect_out_shape(out, wanted, where);
  run({CollectiveOp::kReduceScatter, dim, in.dtype, in.shape, out.shape, stage, next_sequence_++},
      out, in, stream);
}

void Collective::all_to_all(const TensorView& out, const TensorView& in, Stream stream,
                            std::string_view stage) {
  const std::string where = context("all_to_all", stage, rank());
  expect_same_dtype(out, in, where);
  if (in.rank() == 0 || in.shape[0] != world_size()) {
    throw InvalidArgument(where + "dim 0 of " + describe(in) + " must be the " +
                          std::to_string(world_size()) + " ranks");
  }
  expect_out_shape(out, in.shape, where);
  run({CollectiveOp::kAllToAll, 0, in.dtype, in.shape, out.shape, stage, next_sequence_++}, out, in,
      stream);
}

std::int64_t wire_bytes(const CollectiveCall& call, int world_size) {
  const std::int64_t in_bytes =
      element_count(call.in_shape) * static_cast<std::int64_t>(size_bytes(call.dtype));
  if (call.op == CollectiveOp::kAllGather) return (world_size - 1) * in_bytes;
  return in_bytes / world_size * (world_size - 1);
}

}  // namespace mladcp
