// Presets: what attention needs to know of a published model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/kv_cache.h"

namespace mladcp {

// The part of a model's YaRN settings that reaches attention. A model without YaRN: factor 1.
struct YarnScaling {
  double factor = 1.0;          // rope_scaling.factor
  double mscale_all_dim = 0.0;  // rope_scaling.mscale_all_dim
};

struct ModelConfig {
  std::string_view name;
  std::int64_t heads = 0;  // num_attention_heads
  MlaDims dims;
  YarnScaling yarn;

  // (P + R)^-0.5 * mscale^2, mscale = 0.1 * mscale_all_dim * ln(factor) + 1 for factor > 1, else 1.
  // Source: DeepseekV3Attention and yarn_get_mscale of modeling_deepseek.py; the squared mscale is
  // easily forgotten and makes every logit of DeepSeek-V3 1.87 times too small.
  float softmax_scale() const;
};

// Throws InvalidArgument listing the known names.
ModelConfig model_from_name(std::string_view name);

std::vector<std::string> model_names();

}  // namespace mladcp
