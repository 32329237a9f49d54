#include "core/decode_workspace.h"

#include <algorithm>
#include <string>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

void expect_within(const char* field, std::int64_t value, std::int64_t limit) {
  if (value <= limit) return;
  throw InvalidArgument("decode plan: " + std::string(field) + " = " + std::to_string(value) +
                        " is beyond the workspace's " + std::to_string(limit) +
                        "; build the workspace with larger DecodeLimits");
}

template <typename T>
void upload(const TensorView& destination, const std::vector<T>& values, Stream stream) {
  destination.device->copy_from_host(destination.data, values.data(), values.size() * sizeof(T),
                                     stream);
}

}  // namespace

DecodeWorkspace::DecodeWorkspace(Device& device, const ParallelConfig& config, const MlaDims& dims,
                                 const AttentionOps& attention, const DecodeLimits& limits)
    : side_(device), config_(config), dims_(dims), limits_(limits), attention_(&attention) {
  validate(config);
  const std::int64_t t = limits.rows;
  const std::int64_t n = config.dcp;
  const std::int64_t h = config.local_heads();
  const std::int64_t hg = config.gathered_heads();
  const std::int64_t x = width();
  query_heads_ = config.replicate_query ? hg : h;
  num_parts_ = attention.num_parts({hg, limits.q_len});
  // With one row per request fewer row tiles exist, so more parts may run at once.
  const std::int64_t most_parts = attention.num_parts({hg, 1});
  const DType query_dtype = config.quantized_query() ? DType::kE4M3 : DType::kBF16;
  const bool reduces = n > 1 && config.combine == Combine::kAllGatherReduceScatter;
  const bool exchanges = n > 1 && config.combine == Combine::kAllToAll;
  const bool packs = n > 1 && config.combine == Combine::kAllToAllPacked;
  const auto tensor = [&](DType dtype, const Shape& shape, const char* name, bool wanted = true) {
    return wanted ? Tensor(device, dtype, shape, name) : Tensor();
  };

  request_ = tensor(DType::kI32, {t}, "request");
  visible_ = tensor(DType::kI32, {t}, "visible");
  slots_ = tensor(DType::kI64, {t}, "slots");
  row_begin_ = tensor(DType::kI32, {limits.requests + 1}, "row_begin");
  lengths_ = tensor(DType::kI32, {limits.requests}, "lengths");
  block_table_ = tensor(DType::kI32, {limits.requests, limits.columns}, "block_table");
  parts_ = tensor(DType::kI32, {std::max(num_parts_, most_parts), 8}, "schedule parts");
  num_splits_ = tensor(DType::kI32, {limits.requests + 1}, "num_splits");

  absorbed_ = tensor(DType::kBF16, {t, query_heads_, dims.latent}, "absorbed query");
  local_query_ = tensor(query_dtype, {query_heads_, t, dims.row()}, "query");
  gathered_query_ = tensor(query_dtype, {hg, t, dims.row()}, "gathered query", n > 1);
  partial_ = tensor(DType::kBF16, {t, hg, dims.latent}, "partial output");
  lse_ = tensor(DType::kF32, {t, hg}, "lse");
  scratch_ =
      tensor(DType::kBytes, {attention.decode_workspace_bytes(t, {hg, limits.q_len}, dims.latent)},
             "attention scratch");
  projected_partial_ =
      tensor(DType::kBF16, {t, hg, dims.value}, "projected partial", config.project_before_merge);

  gathered_lse_ = tensor(DType::kF32, {n, t, hg}, "gathered lse", reduces);
  corrected_ = tensor(config.reduce_dtype, {hg, t, x}, "corrected partial", reduces);
  reduced_ = tensor(config.reduce_dtype, {h, t, x}, "reduced output",
                    reduces && config.reduce_dtype != DType::kBF16);
  partials_ = tensor(DType::kBF16, {n, t, h, x}, "partials", exchanges || packs);
  partial_lses_ = tensor(DType::kF32, {n, t, h}, "partial lses", exchanges || packs);
  packed_out_ = tensor(DType::kBF16, {n, t, h, x + 2}, "packed partials", packs);
  packed_in_ = tensor(DType::kBF16, {n, t, h, x + 2}, "received partials", packs);
  combined_ = tensor(DType::kBF16, {h, t, x}, "combined output");
  combined_lse_ = tensor(DType::kF32, {t, h}, "combined lse");
  output_ = tensor(DType::kBF16, {t, h, dims.value}, "output", !config.project_before_merge);
}

void DecodeWorkspace::load(const DecodePlan& plan, Stream stream) {
  expect_within("rows", plan.rows(), limits_.rows);
  expect_within("requests", plan.requests(), limits_.requests);
  expect_within("columns", plan.block_table.columns, limits_.columns);
  expect_within("q_len", plan.max_q_len, limits_.q_len);
  rows_ = plan.rows();
  requests_ = plan.requests();
  columns_ = plan.block_table.columns;
  max_q_len_ = plan.max_q_len;
  num_parts_ = attention_->num_parts(schedule_shape());
  const DecodeRows rows = plan_rows();
  upload(rows.request, plan.request, stream);
  upload(rows.visible, plan.visible, stream);
  upload(rows.row_begin, plan.row_begin, stream);
  upload(rows.lengths, plan.lengths, stream);
  upload(rows.block_table, plan.block_table.pages, stream);
  upload(slots(), plan.slots, stream);
}

TensorView DecodeWorkspace::view(const Tensor& storage, const Shape& shape) const {
  TensorView result = storage.view();
  result.shape = shape;
  result.strides = contiguous_strides(shape);
  return result;
}

TensorView DecodeWorkspace::heads_first(const Tensor& storage, std::int64_t heads,
                                        std::int64_t width) const {
  return view(storage, {heads, rows_, width}).transposed(0, 1);
}

DecodeRows DecodeWorkspace::plan_rows() const {
  return {view(request_, {rows_}),
          view(visible_, {rows_}),
          view(row_begin_, {requests_ + 1}),
          view(lengths_, {requests_}),
          view(block_table_, {requests_, columns_}),
          max_q_len_};
}
TensorView DecodeWorkspace::slots() const { return view(slots_, {rows_}); }
ScheduleTensors DecodeWorkspace::schedule() const {
  return {view(parts_, {num_parts_, 8}), view(num_splits_, {requests_ + 1})};
}
ScheduleShape DecodeWorkspace::schedule_shape() const {
  return {config_.gathered_heads(), max_q_len_};
}
TensorView DecodeWorkspace::absorbed() const {
  return view(absorbed_, {rows_, query_heads_, dims_.latent});
}
TensorView DecodeWorkspace::local_query() const {
  return heads_first(local_query_, query_heads_, dims_.row());
}
TensorView DecodeWorkspace::gathered_query() const {
  return heads_first(gathered_query_, config_.gathered_heads(), dims_.row());
}
TensorView DecodeWorkspace::partial() const {
  return view(partial_, {rows_, config_.gathered_heads(), dims_.latent});
}
TensorView DecodeWorkspace::lse() const { return view(lse_, {rows_, config_.gathered_heads()}); }
TensorView DecodeWorkspace::attention_scratch() const { return scratch_; }
TensorView DecodeWorkspace::projected_partial() const {
  return view(projected_partial_, {rows_, config_.gathered_heads(), dims_.value});
}
TensorView DecodeWorkspace::gathered_lse() const {
  return view(gathered_lse_, {config_.dcp, rows_, config_.gathered_heads()});
}
TensorView DecodeWorkspace::corrected() const {
  return heads_first(corrected_, config_.gathered_heads(), width());
}
TensorView DecodeWorkspace::reduced() const {
  return heads_first(reduced_, config_.local_heads(), width());
}
TensorView DecodeWorkspace::partials() const {
  return view(partials_, {config_.dcp, rows_, config_.local_heads(), width()});
}
TensorView DecodeWorkspace::partial_lses() const {
  return view(partial_lses_, {config_.dcp, rows_, config_.local_heads()});
}
TensorView DecodeWorkspace::packed_out() const {
  return view(packed_out_, {config_.dcp, rows_, config_.local_heads(), width() + 2});
}
TensorView DecodeWorkspace::packed_in() const {
  return view(packed_in_, {config_.dcp, rows_, config_.local_heads(), width() + 2});
}
TensorView DecodeWorkspace::combined() const {
  return heads_first(combined_, config_.local_heads(), width());
}
TensorView DecodeWorkspace::combined_lse() const {
  return view(combined_lse_, {rows_, config_.local_heads()});
}
TensorView DecodeWorkspace::output() const {
  if (config_.project_before_merge) return config_.dcp > 1 ? combined() : projected_partial();
  return view(output_, {rows_, config_.local_heads(), dims_.value});
}

}  // namespace mladcp
