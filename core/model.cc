#include "core/model.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr MlaDims kDeepSeekDims = {.latent = 512, .rope = 64, .nope = 128, .value = 128};
constexpr MlaDims kTinyDims = {.latent = 64, .rope = 32, .nope = 32, .value = 32};

// From the config.json of each model. DeepSeek-V2.5 and Coder-V2 differ from V2 (mscale_all_dim 1),
// Kimi-K2-Instruct-0905 and later from Kimi-K2 (factor 64). `tiny` is no model: small and odd
// enough for tests, without YaRN.
constexpr std::array kModels = {
    ModelConfig{"deepseek-v3", 128, kDeepSeekDims, {.factor = 40, .mscale_all_dim = 1.0}},
    ModelConfig{"deepseek-r1", 128, kDeepSeekDims, {.factor = 40, .mscale_all_dim = 1.0}},
    ModelConfig{"deepseek-v2", 128, kDeepSeekDims, {.factor = 40, .mscale_all_dim = 0.707}},
    ModelConfig{"deepseek-v2-lite", 16, kDeepSeekDims, {.factor = 40, .mscale_all_dim = 0.707}},
    ModelConfig{"kimi-k2", 64, kDeepSeekDims, {.factor = 32, .mscale_all_dim = 1.0}},
    ModelConfig{"kimi-k2-0905", 64, kDeepSeekDims, {.factor = 64, .mscale_all_dim = 1.0}},
    ModelConfig{"tiny", 8, kTinyDims, {}},
};

}  // namespace

float ModelConfig::softmax_scale() const {
  const double mscale =
      yarn.factor > 1.0 ? 0.1 * yarn.mscale_all_dim * std::log(yarn.factor) + 1.0 : 1.0;
  const auto width = static_cast<double>(dims.nope + dims.rope);
  return static_cast<float>(mscale * mscale / std::sqrt(width));
}

ModelConfig model_from_name(std::string_view name) {
  std::string known;
  for (const ModelConfig& model : kModels) {
    if (model.name == name) return model;
    known += (known.empty() ? "" : ", ") + std::string(model.name);
  }
  throw InvalidArgument("model = '" + std::string(name) + "': use one of " + known);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  names.reserve(kModels.size());
  for (const ModelConfig& model : kModels) names.emplace_back(model.name);
  return names;
}

}  // namespace mladcp
