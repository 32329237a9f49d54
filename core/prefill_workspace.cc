#include "core/prefill_workspace.h"

#include <algorithm>
#include <string>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

void expect_within(const char* field, std::int64_t value, std::int64_t limit) {
  if (value <= limit) return;
  throw InvalidArgument("prefill plan: " + std::string(field) + " = " + std::to_string(value) +
                        " is beyond the workspace's " + std::to_string(limit) +
                        "; build the workspace with larger PrefillLimits");
}

TensorView head_of(const Tensor& storage, std::int64_t rows) {
  return storage.view().narrow(0, 0, rows);
}

// Collects index arrays in one host buffer, each on a 16-byte boundary (vector loads of kernels).
class IndexPacker {
 public:
  std::int64_t add(const std::vector<std::int32_t>& values) {
    packed_.resize((packed_.size() + 3) / 4 * 4);
    const auto at = static_cast<std::int64_t>(packed_.size());
    packed_.insert(packed_.end(), values.begin(), values.end());
    return at;
  }
  const std::vector<std::int32_t>& packed() const { return packed_; }

 private:
  std::vector<std::int32_t> packed_;
};

struct ChunkOffsets {
  std::int64_t cu_seq_lens, token_to_seq, seq_starts, source_rows, cu_context;
};

}  // namespace

PrefillWorkspace::PrefillWorkspace(Device& device, const ParallelConfig& config,
                                   const MlaDims& dims, const PrefillLimits& limits)
    : device_(&device),
      dims_(dims),
      limits_(limits),
      world_size_(config.dcp),
      heads_(config.local_heads()) {
  validate(config);
  if (limits.workspace_rows % world_size_ != 0) {
    throw InvalidArgument("workspace_rows = " + std::to_string(limits.workspace_rows) +
                          ": must be a multiple of dcp = " + std::to_string(world_size_));
  }
  const std::int64_t t = limits.rows;
  const std::int64_t gathered = limits.workspace_rows;
  const std::int64_t most = std::max(t, gathered);
  const auto tensor = [&](DType dtype, const Shape& shape, const char* name) {
    return Tensor(device, dtype, shape, name);
  };
  slots_ = tensor(DType::kI64, {t}, "slots");
  local_rows_ = tensor(DType::kBF16, {gathered / world_size_, dims.row()}, "local context rows");
  if (world_size_ > 1) {
    gathered_rows_ = tensor(DType::kBF16, {gathered, dims.row()}, "gathered context rows");
    context_rows_ = tensor(DType::kBF16, {gathered, dims.row()}, "context rows");
  }
  new_rows_ = tensor(DType::kBF16, {t, dims.row()}, "new rows");
  key_ = tensor(DType::kBF16, {most, heads_, dims.nope + dims.rope}, "key");
  value_ = tensor(DType::kBF16, {most, heads_, dims.value}, "value");
  running_ = tensor(DType::kF32, {t, heads_, dims.value}, "running output");
  running_lse_ = tensor(DType::kF32, {t, heads_}, "running lse");
  partial_ = tensor(DType::kF32, {t, heads_, dims.value}, "partial output");
  partial_lse_ = tensor(DType::kF32, {t, heads_}, "partial lse");
  output_ = tensor(DType::kBF16, {t, heads_, dims.value}, "output");
}

void PrefillWorkspace::reserve_indices(std::int64_t count) {
  if (!indices_.empty() && indices_.shape()[0] >= count) return;
  indices_ = Tensor(*device_, DType::kI32, {count}, "prefill plan");
}

void PrefillWorkspace::load(const PrefillPlan& plan, Stream stream) {
  expect_within("rows", plan.rows(), limits_.rows);
  if (plan.context.geometry.sharding.world_size != world_size_) {
    throw InvalidArgument(
        "prefill plan: made for " + std::to_string(plan.context.geometry.sharding.world_size) +
        " ranks, but the workspace's config has dcp = " + std::to_string(world_size_));
  }
  IndexPacker packer;
  const std::int64_t cu_rows = packer.add(plan.cu_rows);
  const std::int64_t table = packer.add(plan.block_table.pages);
  std::vector<ChunkOffsets> offsets;
  for (const ContextChunk& chunk : plan.context.chunks) {
    expect_within("gathered rows of a chunk", chunk.toks * world_size_, limits_.workspace_rows);
    expect_within("context rows of a chunk", static_cast<std::int64_t>(chunk.source_rows.size()),
                  limits_.workspace_rows);
    offsets.push_back({packer.add(chunk.padded_local_cu_seq_lens),
                       packer.add(chunk.padded_local_token_to_seq), packer.add(chunk.seq_starts),
                       packer.add(chunk.source_rows), packer.add(chunk.cu_seq_lens)});
  }
  const auto count = static_cast<std::int64_t>(packer.packed().size());
  reserve_indices(count);
  device_->copy_from_host(indices_.as<std::int32_t>(), packer.packed().data(),
                          packer.packed().size() * sizeof(std::int32_t), stream);

  const auto view = [&](std::int64_t at, std::int64_t length, const char* name) {
    return indices_.view().narrow(0, at, length).renamed(name);
  };
  rows_ = plan.rows();
  max_rows_ = plan.max_rows;
  device_->copy_from_host(slots_.as<std::int64_t>(), plan.slots.data(),
                          plan.slots.size() * sizeof(std::int64_t), stream);
  const std::int64_t requests = plan.requests();
  cu_rows_ = view(cu_rows, requests + 1, "cu_rows");
  block_table_ = view(table, requests * plan.block_table.columns, "block_table")
                     .reshaped({requests, plan.block_table.columns});
  chunks_.clear();
  for (std::size_t c = 0; c < offsets.size(); ++c) {
    const ContextChunk& chunk = plan.context.chunks[c];
    const auto rows = static_cast<std::int64_t>(chunk.source_rows.size());
    Chunk loaded;
    loaded.tensors = {view(offsets[c].cu_seq_lens, requests + 1, "padded_local_cu_seq_lens"),
                      view(offsets[c].token_to_seq, chunk.toks, "padded_local_token_to_seq"),
                      view(offsets[c].seq_starts, requests, "seq_starts"),
                      view(offsets[c].source_rows, rows, "source_rows")};
    loaded.cu_context = view(offsets[c].cu_context, requests + 1, "cu_seq_lens");
    loaded.toks = chunk.toks;
    loaded.rows = rows;
    chunks_.push_back(loaded);
  }
}

TensorView PrefillWorkspace::slots() const { return head_of(slots_, rows_); }

TensorView PrefillWorkspace::local_rows(std::int64_t c) const {
  return head_of(local_rows_, at(c).toks);
}
TensorView PrefillWorkspace::gathered_rows(std::int64_t c) const {
  return world_size_ > 1 ? head_of(gathered_rows_, world_size_ * at(c).toks) : local_rows(c);
}
TensorView PrefillWorkspace::context_rows(std::int64_t c) const {
  return world_size_ > 1 ? head_of(context_rows_, at(c).rows) : local_rows(c);
}
TensorView PrefillWorkspace::new_rows() const { return head_of(new_rows_, rows_); }
TensorView PrefillWorkspace::key(std::int64_t rows) const { return head_of(key_, rows); }
TensorView PrefillWorkspace::value(std::int64_t rows) const { return head_of(value_, rows); }
TensorView PrefillWorkspace::running() const { return head_of(running_, rows_); }
TensorView PrefillWorkspace::running_lse() const { return head_of(running_lse_, rows_); }
TensorView PrefillWorkspace::partial() const { return head_of(partial_, rows_); }
TensorView PrefillWorkspace::partial_lse() const { return head_of(partial_lse_, rows_); }
TensorView PrefillWorkspace::output() const { return head_of(output_, rows_); }

}  // namespace mladcp
