#include "harness/naive_prefill.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mladcp {
namespace {

std::vector<std::int32_t> indices(const TensorView& tensor, Stream stream) {
  const Tensor host = copied_to_host(tensor, stream);
  const auto* values = host.as<const std::int32_t>();
  return {values, values + host.view().elements()};
}

// The first row of the cache a source names, or -1.
std::int64_t cache_row(const NaiveGather::Source& source, std::int64_t column,
                       const TensorView& table, const KvCache& cache) {
  if (source.request < 0 || source.request >= table.size(0) || column < 0 ||
      column >= table.size(1)) {
    return -1;
  }
  const std::int64_t page = table.as<const std::int32_t>()[source.request * table.size(1) + column];
  if (page < 0 || page >= cache.pages()) return -1;
  return page * cache.page_size() + source.local_row % cache.page_size();
}

double natural_weight(float own, float other) {
  return std::isinf(own) ? 0.0 : 1.0 / (1.0 + std::exp(double{other} - double{own}));
}

}  // namespace

void NaiveGather::run(const OpFunctions::Gather& call) const {
  const Tensor cache = copied_to_host(call.cache.data, call.stream);
  const Tensor table = copied_to_host(call.block_table, call.stream);
  const ChunkIndex index = {indices(call.chunk.cu_seq_lens, call.stream),
                            indices(call.chunk.token_to_seq, call.stream),
                            indices(call.chunk.seq_starts, call.stream)};
  const std::int64_t width = call.out.size(1);
  const std::int64_t page_size = call.cache.page_size();
  const float scale = call.cache.scale;
  edit_tensor(call.out, call.stream, [&](const TensorView& out) {
    for (std::int64_t t = 0; t < out.size(0); ++t) {
      Source from;
      if (source) {
        from = source(index, t);
      } else {
        from.request = index.token_to_seq[static_cast<std::size_t>(t)];
        const auto b = static_cast<std::size_t>(from.request);
        from.local_row = t - index.cu_seq_lens[b] + index.seq_starts[b];
      }
      const std::int64_t at =
          column ? column(from.local_row, page_size) : from.local_row / page_size;
      const std::int64_t row = cache_row(from, at, table, call.cache);
      for (std::int64_t d = 0; d < width; ++d) {
        if (writes && !writes(from, d, width)) continue;
        const float stored = row < 0 ? 0.0F : value_at(cache, row * width + d);
        set_value(out, t * width + d, value ? value(stored, scale) : stored * scale);
      }
    }
  });
}

void NaiveRows::run(const OpFunctions::Attend& call) const {
  const Tensor query = copied_to_host(call.query, call.stream);
  const Tensor key = copied_to_host(call.key, call.stream);
  const Tensor value = copied_to_host(call.value, call.stream);
  const std::vector<std::int32_t> cu_rows = indices(call.cu_rows, call.stream);
  const std::vector<std::int32_t> cu_keys = indices(call.cu_keys, call.stream);
  const std::int64_t heads = call.query.size(1);
  const std::int64_t width = call.query.size(2);
  const std::int64_t values = call.value.size(2);
  std::vector<float> outs(static_cast<std::size_t>(call.out.elements()), 0.0F);
  std::vector<float> lses(static_cast<std::size_t>(call.lse.elements()),
                          -std::numeric_limits<float>::infinity());

  const auto attend = [&](std::size_t b, std::int64_t t, std::int64_t h) {
    const std::int64_t i = t - cu_rows[b];
    std::vector<double> logits, times;
    for (std::int64_t j = 0; j < cu_keys[b + 1] - cu_keys[b]; ++j) {
      double dot = 0.0;
      for (std::int64_t d = 0; d < width; ++d) {
        dot += double{value_at(query, (t * heads + h) * width + d)} *
               double{value_at(key, ((cu_keys[b] + j) * heads + h) * width + d)};
      }
      logits.push_back(dot * call.softmax_scale);
      times.push_back(weight ? weight(i, j) : (call.causal && j > i ? 0.0 : 1.0));
    }
    double max = -std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < logits.size(); ++j) {
      if (times[j] > 0.0) max = std::max(max, logits[j]);
    }
    if (std::isinf(max)) return;
    double mass = 0.0;
    std::vector<double> sums(static_cast<std::size_t>(values), 0.0);
    for (std::size_t j = 0; j < logits.size(); ++j) {
      if (times[j] == 0.0) continue;
      const auto p = static_cast<float>(std::exp(logits[j] - max) * times[j]);
      mass += p;
      const float stored = round_p ? round_p(p) : p;
      const std::int64_t row = (cu_keys[b] + static_cast<std::int64_t>(j)) * heads + h;
      for (std::int64_t c = 0; c < values; ++c) {
        sums[static_cast<std::size_t>(c)] +=
            double{stored} * double{value_at(value, row * values + c)};
      }
    }
    for (std::int64_t c = 0; c < values; ++c) {
      outs[static_cast<std::size_t>((t * heads + h) * values + c)] =
          static_cast<float>(sums[static_cast<std::size_t>(c)] / mass);
    }
    lses[static_cast<std::size_t>(t * heads + h)] = static_cast<float>(max + std::log(mass));
  };
  for (std::size_t b = 0; b + 1 < cu_rows.size(); ++b) {
    for (std::int64_t t = cu_rows[b]; t < cu_rows[b + 1]; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) attend(b, t, h);
    }
  }
  map_values(call.out, call.stream,
             [&](float, std::int64_t i) { return outs[static_cast<std::size_t>(i)]; });
  map_values(call.lse, call.stream,
             [&](float, std::int64_t i) { return lses[static_cast<std::size_t>(i)]; });
}

void NaiveMerge::run(const OpFunctions::MergeInto& call) const {
  const Tensor running_lse = copied_to_host(call.running_lse, call.stream);
  const Tensor partial_lse = copied_to_host(call.partial_lse, call.stream);
  const Tensor partial = copied_to_host(call.partial, call.stream);
  const std::int64_t width = call.running.size(2);
  map_values(call.running, call.stream, [&](float before, std::int64_t i) {
    const float r = value_at(running_lse, i / width);
    const float p = value_at(partial_lse, i / width);
    const float w =
        running_weight ? running_weight(r, p) : static_cast<float>(natural_weight(r, p));
    const float v = partial_weight ? partial_weight(r, p) : 1.0F - w;
    return w * before + (v == 0.0F ? 0.0F : v * value_at(partial, i));
  });
  map_values(call.running_lse, call.stream, [&](float r, std::int64_t i) {
    const float p = value_at(partial_lse, i);
    if (lse) return lse(r, p);
    const double max = std::max(r, p);
    return std::isinf(max)
               ? static_cast<float>(max)
               : static_cast<float>(max + std::log(std::exp(r - max) + std::exp(p - max)));
  });
}

}  // namespace mladcp
