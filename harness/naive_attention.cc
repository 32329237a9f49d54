#include "harness/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace mladcp {
namespace {

// Host copies of everything a decode call reads.
struct HostCall {
  explicit HostCall(const OpFunctions::Decode& call)
      : cache(copied_to_host(call.cache.data, call.stream)),
        request(copied_to_host(call.rows.request, call.stream)),
        visible(copied_to_host(call.rows.visible, call.stream)),
        table(copied_to_host(call.rows.block_table, call.stream)) {
    if (const auto* pair = std::get_if<QueryPair>(&call.query)) {
      latent = copied_to_host(pair->latent, call.stream);
      rope = copied_to_host(pair->rope, call.stream);
    } else {
      query = copied_to_host(std::get<TensorView>(call.query), call.stream);
    }
  }

  float query_at(std::int64_t t, std::int64_t h, std::int64_t heads, std::int64_t i) const {
    if (!query.empty()) {
      const std::int64_t width = query.view().size(2);
      return value_at(query, (t * heads + h) * width + i);
    }
    const std::int64_t l = latent.view().size(2);
    const std::int64_t r = rope.view().size(2);
    return i < l ? value_at(latent, (t * heads + h) * l + i)
                 : value_at(rope, (t * heads + h) * r + i - l);
  }

  Tensor cache, request, visible, table, latent, rope, query;
};

struct RowSums {
  std::vector<float> out;
  float lse = -std::numeric_limits<float>::infinity();
};

}  // namespace

void NaiveAttention::run(const OpFunctions::Decode& call) const {
  constexpr std::int64_t kStepKeys = 32;
  const HostCall host(call);
  const std::int64_t heads = call.out.size(1);
  const std::int64_t latent = call.out.size(2);
  const std::int64_t width = call.cache.data.size(2);
  const std::int64_t page = call.cache.page_size();
  const bool fp8_cache = call.cache.quantized();
  const bool fp8_query = !host.query.empty() && host.query.view().dtype == DType::kE4M3;
  const double k_scale = fp8_cache ? call.cache.scale : 1.0;
  const double scale = call.scales.softmax_scale * k_scale *
                       (fp8_query ? call.scales.q_scale : 1.0) * logit_factor;

  const auto row_of = [&](std::int64_t t, std::int64_t h) {
    const std::int64_t b = host.request.as<const std::int32_t>()[t];
    const std::int64_t visible = host.visible.as<const std::int32_t>()[t];
    const auto* table = host.table.as<const std::int32_t>() + b * host.table.view().size(1);
    const auto row_begin = [&](std::int64_t key) {
      return (table[key / page] * page + key % page) * width;
    };
    std::vector<double> logits(static_cast<std::size_t>(visible));
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t key = 0; key < visible; ++key) {
      double dot = 0.0;
      for (std::int64_t i = 0; i < width; ++i) {
        dot += double{host.query_at(t, h, heads, i)} * value_at(host.cache, row_begin(key) + i);
      }
      logits[static_cast<std::size_t>(key)] = scale * dot;
      largest = std::max(largest, scale * dot);
    }
    RowSums sums;
    sums.out.assign(static_cast<std::size_t>(latent), 0.0F);
    double mass = 0.0;
    std::vector<double> exact(static_cast<std::size_t>(latent), 0.0);
    std::vector<double> step(static_cast<std::size_t>(latent), 0.0);
    for (std::int64_t key = 0; key < visible; ++key) {
      const double times = weight ? weight(t, h, key, visible) : 1.0;
      const auto p =
          static_cast<float>(std::exp(logits[static_cast<std::size_t>(key)] - largest) * times);
      mass += p;
      const float stored = round_p ? round_p(p) : p;
      for (std::int64_t c = 0; stored != 0.0F && c < latent; ++c) {
        const std::int64_t column = value_column ? value_column(c) : c;
        const double term = double{stored} * value_at(host.cache, row_begin(key) + column);
        exact[static_cast<std::size_t>(c)] += term;
        step[static_cast<std::size_t>(c)] += term;
      }
      if (accumulate && (key % kStepKeys == kStepKeys - 1 || key == visible - 1)) {
        for (std::size_t c = 0; c < step.size(); ++c) {
          sums.out[c] = accumulate(sums.out[c], static_cast<float>(step[c]));
          step[c] = 0.0;
        }
      }
    }
    if (mass == 0.0) return sums;
    for (std::size_t c = 0; c < exact.size(); ++c) {
      sums.out[c] = static_cast<float>((accumulate ? sums.out[c] : exact[c]) / mass * k_scale);
    }
    sums.lse = static_cast<float>(largest + std::log(mass));
    return sums;
  };

  std::vector<float> lses;
  std::vector<float> outs;
  for (std::int64_t t = 0; t < call.out.size(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const RowSums sums = row_of(t, h);
      lses.push_back(sums.lse);
      outs.insert(outs.end(), sums.out.begin(), sums.out.end());
    }
  }
  map_values(call.out, call.stream,
             [&](float, std::int64_t i) { return outs[static_cast<std::size_t>(i)]; });
  map_values(call.lse, call.stream,
             [&](float, std::int64_t i) { return lses[static_cast<std::size_t>(i)]; });
}

}  // namespace mladcp
