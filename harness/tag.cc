#include "harness/tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/bfloat16.h"
#include "core/error.h"
#include "core/float8_e4m3.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr int kOwnerDigits = 4;
constexpr int kRequestDigits = 4;
constexpr int kPositionDigits = 8;
static_assert(kOwnerDigits + kRequestDigits + kPositionDigits == Tag::kDigits);

int digit_of(std::int64_t value, int place) {
  return static_cast<int>((static_cast<std::uint64_t>(value) >> (4 * place)) & 15U);
}

void write_tag(BFloat16* part, std::int64_t channels, const Tag& tag) {
  for (std::int64_t c = 0; c < channels; ++c) {
    part[c] = BFloat16::from_float(static_cast<float>(tag.digit(c)));
  }
}

float value_at(const TensorView& rows, std::int64_t index) {
  if (rows.dtype == DType::kE4M3) return rows.as<const Float8E4M3>()[index].to_float();
  if (rows.dtype == DType::kBF16) return rows.as<const BFloat16>()[index].to_float();
  throw InvalidArgument("tensor " + describe(rows) + ": tags are read from e4m3 or bf16");
}

// The tag that all channels agree on.
std::optional<Tag> tag_of(const std::vector<float>& part) {
  const auto field = [&](std::int64_t first, int digits) {
    std::int64_t value = 0;
    for (std::int64_t c = first; c < first + digits; ++c) {
      const float digit = part[static_cast<std::size_t>(c)];
      if (!(digit >= 0.0F && digit < 16.0F)) return std::int64_t{0};  // refused below
      value = value * 16 + static_cast<std::int64_t>(digit);
    }
    return value;
  };
  if (part.size() < static_cast<std::size_t>(Tag::kDigits)) return std::nullopt;
  const Tag tag{field(0, kOwnerDigits), field(kOwnerDigits, kRequestDigits),
                field(kOwnerDigits + kRequestDigits, kPositionDigits)};
  for (std::size_t c = 0; c < part.size(); ++c) {
    const auto digit = static_cast<float>(tag.digit(static_cast<std::int64_t>(c)));
    if (part[c] != digit) return std::nullopt;
  }
  return tag;
}

}  // namespace

int Tag::digit(std::int64_t c) const {
  auto at = static_cast<int>(c % kDigits);
  if (at < kOwnerDigits) return digit_of(owner, kOwnerDigits - 1 - at);
  at -= kOwnerDigits;
  if (at < kRequestDigits) return digit_of(request, kRequestDigits - 1 - at);
  return digit_of(position, kPositionDigits - 1 - (at - kRequestDigits));
}

Scenario tag_scenario(const Scenario& scenario) {
  Scenario tagged = scenario;
  tagged.parallel.k_scale = 1.0F;
  tagged.parallel.q_scale = 1.0F;
  return tagged;
}

DecodeProblem tagged_problem(const Scenario& scenario) {
  const ModelConfig model = scenario.model_config();
  DecodeProblem problem =
      random_decode_problem(model.dims, model.softmax_scale(), scenario.parallel.heads,
                            scenario.step_requests(), {.seed = scenario.seed}, threads_per_rank(1));
  make_diagonal(problem.w_uk);
  make_diagonal(problem.w_uv);
  const MlaDims& dims = problem.dims;
  const KvSharding sharding = scenario.parallel.sharding();
  std::int64_t row = 0;
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const auto request = static_cast<std::int64_t>(b);
    const auto& [length, q_len] = problem.requests[b];
    for (std::int64_t p = 0; p < length; ++p) {
      auto* key = problem.kv.as<BFloat16>() + (problem.kv_begin[b] + p) * dims.row();
      const Tag tag{sharding.owner(p), request, p};
      write_tag(key, dims.latent, tag);
      write_tag(key + dims.latent, dims.rope, tag);
    }
    for (std::int64_t p = length - q_len; p < length; ++p, ++row) {
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        const std::int64_t at = row * problem.heads + h;
        const Tag tag{h, request, p};
        write_tag(problem.q_nope.as<BFloat16>() + at * dims.nope, dims.nope, tag);
        write_tag(problem.q_rope.as<BFloat16>() + at * dims.rope, dims.rope, tag);
      }
    }
  }
  return problem;
}

std::string TagReader::part(const TensorView& rows, std::int64_t begin, std::int64_t count) const {
  std::vector<float> values;
  for (std::int64_t i = begin; i < begin + count; ++i) values.push_back(value_at(rows, i));
  if (std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
    return "no token";
  }
  const std::optional<Tag> tag = tag_of(values);
  if (!tag) return "no tag";
  return fmt::format("{} {} request {} position {}", owner_, tag->owner, tag->request,
                     tag->position);
}

std::string TagReader::operator()(const TensorView& rows, std::int64_t row) const {
  const std::int64_t begin = row * dims_.row();
  const std::string latent = part(rows, begin, latent_);
  const std::string rope = part(rows, begin + dims_.latent, dims_.rope);
  return latent == rope ? latent : fmt::format("latent of {}, RoPE part of {}", latent, rope);
}

}  // namespace mladcp
