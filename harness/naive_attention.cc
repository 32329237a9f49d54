#include "harness/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace mladcp {
namespace {

std::vector<float> floats(const TensorView& tensor, Stream stream) {
  const Tensor host = copied_to_host(tensor, stream);
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_at(host, static_cast<std::int64_t>(i));
  }
  return values;
}

// Host copies of everything a decode call reads, as numbers.
struct HostCall {
  explicit HostCall(const OpFunctions::Decode& call)
      : cache(floats(call.cache.data, call.stream)),
        request(copied_to_host(call.rows.request, call.stream)),
        visible(copied_to_host(call.rows.visible, call.stream)),
        table(copied_to_host(call.rows.block_table, call.stream)) {
    if (const auto* pair = std::get_if<QueryPair>(&call.query)) {
      const std::vector<float> latent = floats(pair->latent, call.stream);
      const std::vector<float> rope = floats(pair->rope, call.stream);
      const std::int64_t l = pair->latent.size(2);
      const std::int64_t r = pair->rope.size(2);
      for (std::int64_t row = 0; row < pair->latent.size(0) * pair->latent.size(1); ++row) {
        query.insert(query.end(), latent.begin() + row * l, latent.begin() + (row + 1) * l);
        query.insert(query.end(), rope.begin() + row * r, rope.begin() + (row + 1) * r);
      }
    } else {
      const auto& tensor = std::get<TensorView>(call.query);
      query = floats(tensor, call.stream);
      fp8_query = tensor.dtype == DType::kE4M3;
    }
  }

  std::vector<float> cache;  // [pages * page, D]
  std::vector<float> query;  // [T * H, D]
  Tensor request, visible, table;
  bool fp8_query = false;
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
  const double k_scale = fp8_cache ? call.cache.scale : 1.0;
  const double scale = call.scales.softmax_scale * k_scale *
                       (host.fp8_query ? call.scales.q_scale : 1.0) * logit_factor;

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
      const float* query = host.query.data() + (t * heads + h) * width;
      const float* row = host.cache.data() + row_begin(key);
      double dot = 0.0;
      for (std::int64_t i = 0; i < width; ++i) dot += double{query[i]} * double{row[i]};
      logits[static_cast<std::size_t>(key)] = scale * dot;
      largest = std::max(largest, scale * dot);
    }
    RowSums sums;
    sums.out.assign(static_cast<std::size_t>(latent), 0.0F);
    double mass = 0.0;
    std::vector<double> exact(static_cast<std::size_t>(latent), 0.0);
    std::vector<double> step(static_cast<std::size_t>(latent), 0.0);
    std::vector<float> chain(static_cast<std::size_t>(latent), 0.0F);
    for (std::int64_t key = 0; key < visible; ++key) {
      const double times = weight ? weight(t, h, key, visible) : 1.0;
      const auto p =
          static_cast<float>(std::exp(logits[static_cast<std::size_t>(key)] - largest) * times);
      mass += p;
      const float stored = round_p ? round_p(p) : p;
      for (std::int64_t c = 0; stored != 0.0F && c < latent; ++c) {
        const std::int64_t column = value_column ? value_column(c) : c;
        const double term =
            double{stored} * double{host.cache[static_cast<std::size_t>(row_begin(key) + column)]};
        exact[static_cast<std::size_t>(c)] += term;
        step[static_cast<std::size_t>(c)] += term;
      }
      if (accumulate && (key % kStepKeys == kStepKeys - 1 || key == visible - 1)) {
        for (std::size_t c = 0; c < step.size(); ++c) {
          chain[c] = accumulate(chain[c], static_cast<float>(step[c]));
          step[c] = 0.0;
        }
        if (key == visible - 1 || (chain_keys != 0 && (key + 1) % chain_keys == 0)) {
          for (std::size_t c = 0; c < chain.size(); ++c) {
            sums.out[c] += chain[c];
            chain[c] = 0.0F;
          }
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
