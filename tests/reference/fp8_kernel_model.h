// What an e4m3 wgmma decode kernel computes, from the bit-exact model of its tensor core: the
// numerics of FlashMLA (offset 0, one chain) and of kernels/decode/sm90_fp8 (offset 7, 64 keys).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/hopper_fp8.h"
#include "tests/reference/attention_problem.h"

namespace mladcp {

struct Fp8KernelModel {
  int offset = 0;
  std::int64_t chain_keys = 0;  // keys between two promotions to fp32; 0: never
};

namespace fp8_model {

inline constexpr std::int64_t kInstructionKeys = 32;

inline std::int64_t round_up(std::int64_t x) {
  return (x + kInstructionKeys - 1) / kInstructionKeys * kInstructionKeys;
}

// [rows, width] codes, widened by zeros to a multiple of what one instruction takes.
inline std::vector<Float8E4M3> padded(const TensorView& view) {
  const std::int64_t width = view.size(1), wide = round_up(width);
  std::vector<Float8E4M3> codes(static_cast<std::size_t>(view.size(0) * wide));
  for (std::int64_t row = 0; row < view.size(0); ++row) {
    std::copy_n(view.as<const Float8E4M3>() + row * width, width, codes.begin() + row * wide);
  }
  return codes;
}

}  // namespace fp8_model

// Contiguous e4m3 query and keys.
inline DecodeResult run_fp8_kernel_model(const AttentionProblem& p, const Fp8KernelModel& model) {
  using namespace fp8_model;
  const AttentionProblemShape& s = p.shape;
  const float scale = s.softmax_scale * s.q_scale * s.k_scale;
  DecodeResult result{host_tensor(DType::kBF16, {p.rows(), s.heads, s.latent}, "out"),
                      host_tensor(DType::kF32, {p.rows(), s.heads}, "lse")};
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    const TensorView keys = p.keys[p.request.as<std::int32_t>()[t]];
    const std::int64_t visible = p.visible.as<std::int32_t>()[t], chunk = round_up(visible);
    std::vector<float> dots(static_cast<std::size_t>(s.heads * visible));
    hopper_product(dots, padded(p.query.view().select(0, t)), padded(keys.narrow(0, 0, visible)),
                   round_up(s.width()));
    std::vector<Float8E4M3> probability(static_cast<std::size_t>(s.heads * chunk));
    std::vector<Float8E4M3> value(static_cast<std::size_t>(s.latent * chunk));
    for (std::int64_t k = 0; k < visible; ++k) {
      for (std::int64_t l = 0; l < s.latent; ++l) {
        value[l * chunk + k] = keys.as<const Float8E4M3>()[k * s.width() + l];
      }
    }
    std::vector<float> sums;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const float* dot = dots.data() + h * visible;
      const float max = visible == 0 ? 0.0F : scale * *std::max_element(dot, dot + visible);
      float sum = 0.0F;
      for (std::int64_t k = 0; k < visible; ++k) {
        const float e = std::exp(scale * dot[k] - max);
        sum += e;
        probability[h * chunk + k] = Float8E4M3::from_float(std::ldexp(e, model.offset));
      }
      sums.push_back(sum);
      result.lse.as<float>()[t * s.heads + h] = visible == 0 ? -INFINITY : max + std::log(sum);
    }
    std::vector<float> out(static_cast<std::size_t>(s.heads * s.latent), 0.0F);
    const std::int64_t chain =
        model.chain_keys > 0 ? model.chain_keys : std::max<std::int64_t>(chunk, 1);
    for (std::int64_t begin = 0; begin < chunk; begin += chain) {
      const std::int64_t length = std::min(chain, chunk - begin);
      const auto columns = [&](const std::vector<Float8E4M3>& codes, std::int64_t rows) {
        std::vector<Float8E4M3> part;
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto at = codes.begin() + row * chunk + begin;
          part.insert(part.end(), at, at + length);
        }
        return part;
      };
      std::vector<float> sum(out.size());
      hopper_product(sum, columns(probability, s.heads), columns(value, s.latent), length);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += sum[i];
    }
    for (std::int64_t i = 0; i < s.heads * s.latent; ++i) {
      const float normaliser =
          visible == 0 ? 0.0F : std::ldexp(s.k_scale, -model.offset) / sums[i / s.latent];
      result.out.as<BFloat16>()[t * s.heads * s.latent + i] =
          BFloat16::from_float(out[i] * normaliser);
    }
  }
  return result;
}

}  // namespace mladcp
