#include "harness/census.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"
#include "harness/random.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr float kAmplitude = 32.0F;  // exact in e4m3; 3 * 32 * 32 = 3072 is the full match
constexpr double kFullMatch = 3.0 * kAmplitude * kAmplitude;
constexpr double kLeastGap = 40.0;  // exp(-40) of 2^20 keys is below 2^-37

std::int64_t windows_of(std::int64_t length, std::int64_t width) {
  return (length + width - 1) / width;
}

Tensor zeros(const Shape& shape, const char* name) {
  Tensor tensor(host_device(), DType::kBF16, shape, name);
  host_device().fill_bytes(tensor.view().data, 0, static_cast<std::size_t>(tensor.view().bytes()),
                           {});
  return tensor;
}

void write_code(BFloat16* rope, const CensusCode& code, std::int64_t g, float amplitude) {
  for (int digit = 0; digit < 3; ++digit) {
    rope[code.channel(g, digit)] = BFloat16::from_float(amplitude);
  }
}

// Where a key lives: what a person needs to find it in a debugger.
std::string whereabouts(const CensusCount::Setting& setting, const CensusMiss& miss) {
  const ParallelConfig& config = setting.census.parallel;
  const KvSharding sharding = config.sharding();
  const std::int64_t owner = sharding.owner(miss.position);
  const std::int64_t local = sharding.local(miss.position);
  const auto table = setting.layout.table.row(miss.request);
  const auto column = static_cast<std::size_t>(local / config.page_size);
  if (column >= table.size()) return "past the block table";
  return fmt::format("kept by rank {} of the group, page {}, slot {}", owner, table[column],
                     table[column] * config.page_size + local % config.page_size);
}

std::string verdict(const CensusMiss& miss) {
  const double m = miss.multiplicity;
  if (std::isnan(m)) return "NaN";
  if (std::fabs(m) < 0.25) return fmt::format("missed ({:.2f} times)", m);
  if (miss.expected && m > 1.25) return fmt::format("attended {:.2f} times", m);
  if (!miss.expected && m > 0.75) return fmt::format("attended though not visible ({:.2f})", m);
  return fmt::format("another key's content ({:.2f})", m);
}

}  // namespace

std::int64_t CensusCode::channel(std::int64_t g, int digit) const {
  for (int i = 0; i < digit; ++i) g /= base;
  return digit * base + g % base;
}

int census_sign(std::uint64_t seed, std::int64_t request, std::int64_t position) {
  const auto index =
      (static_cast<std::uint64_t>(request) << 40U) + static_cast<std::uint64_t>(position);
  return (random_bits(seed, RandomStream::kLatent, index) & 1U) != 0 ? 1 : -1;
}

std::int64_t CensusPass::audited_window(std::int64_t head, std::int64_t visible) const {
  // Only windows with a visible key say anything; heads beyond their number audit them again.
  const std::int64_t seen = std::min(windows_of(visible, width) - first_window, windows);
  return seen <= 0 ? -1 : first_window + head % seen;
}

Scenario census_scenario(const Scenario& scenario) {
  Scenario census = scenario;
  const ModelConfig model = scenario.model_config();
  const bool fp8 = scenario.parallel.kv_dtype == DType::kE4M3;
  census.parallel.k_scale = fp8 ? 2.0F : 1.0F;
  census.parallel.q_scale = 1.0F / census.parallel.k_scale;
  const double gap = kFullMatch * model.softmax_scale() / 3.0;
  if (gap < kLeastGap || model.dims.rope < 3) {
    throw Unsupported("probe census: model " + std::string(model.name) + " leaves a gap of " +
                      std::to_string(gap) + " between a window's keys and others, at least " +
                      std::to_string(kLeastGap) + " are needed");
  }
  return census;
}

std::vector<CensusPass> census_passes(const Scenario& census, std::int64_t width,
                                      std::int64_t heads) {
  const ModelConfig model = census.model_config();
  const std::vector<StepRequest> batch = census.step_requests();
  const auto requests = static_cast<std::int64_t>(batch.size());
  const CensusCode code(model.dims.rope);
  if (requests > code.count()) {
    throw Unsupported("probe census: " + std::to_string(requests) + " requests, but RoPE width " +
                      std::to_string(model.dims.rope) + " has only " +
                      std::to_string(code.count()) + " window codes; use a smaller batch");
  }
  std::int64_t longest = 0;
  for (const StepRequest& request : batch) longest = std::max(longest, request.length);
  const std::int64_t per_pass = std::min(heads, code.count() / std::max<std::int64_t>(requests, 1));
  std::vector<CensusPass> passes;
  for (std::int64_t first = 0; first < std::max<std::int64_t>(windows_of(longest, width), 1);
       first += per_pass) {
    passes.push_back(
        {width, first, per_pass, heads, census.seed, kFullMatch * model.softmax_scale()});
  }
  return passes;
}

DecodeProblem census_problem(const Scenario& census, const CensusPass& pass, int threads) {
  const ModelConfig model = census.model_config();
  const MlaDims& dims = model.dims;
  const ParallelConfig& config = census.parallel;
  const CensusCode code(dims.rope);
  DecodeProblem problem;
  problem.dims = dims;
  problem.softmax_scale = model.softmax_scale();
  problem.heads = config.heads;
  problem.requests = census.step_requests();
  problem.kv_begin.push_back(0);
  std::int64_t rows = 0;
  for (const StepRequest& request : problem.requests) {
    problem.kv_begin.push_back(problem.kv_begin.back() + request.length);
    rows += request.q_len;
  }
  problem.kv = zeros({problem.kv_begin.back(), dims.row()}, "kv");
  problem.q_nope = zeros({rows, config.heads, dims.nope}, "q_nope");
  problem.q_rope = zeros({rows, config.heads, dims.rope}, "q_rope");
  problem.w_uk = zeros({config.heads, dims.nope, dims.latent}, "w_uk");
  problem.w_uv = zeros({config.heads, dims.latent, dims.value}, "w_uv");
  make_diagonal(problem.w_uv);

  std::int64_t row = 0;
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    const auto first_code = static_cast<std::int64_t>(b) * pass.windows;
    parallel_for(
        threads, request.length,
        [&](std::int64_t p) {
          auto* key = problem.kv.as<BFloat16>() + (problem.kv_begin[b] + p) * dims.row();
          const auto sign =
              static_cast<float>(census_sign(pass.seed, static_cast<std::int64_t>(b), p));
          key[p % pass.width] = BFloat16::from_float(sign * config.k_scale);
          const std::int64_t window = p / pass.width - pass.first_window;
          if (window >= 0 && window < pass.windows) {
            write_code(key + dims.latent, code, first_code + window, kAmplitude * config.k_scale);
          }
        },
        1024);
    for (std::int64_t j = 0; j < request.q_len; ++j, ++row) {
      const std::int64_t visible = request.length - request.q_len + j + 1;
      for (std::int64_t h = 0; h < config.heads; ++h) {
        const std::int64_t window = pass.audited_window(h % pass.heads, visible);
        if (window < 0) continue;
        // One unit of the query is worth 1 / k_scale, quantised or not.
        write_code(problem.q_rope.as<BFloat16>() + (row * config.heads + h) * dims.rope, code,
                   first_code + window - pass.first_window, kAmplitude / config.k_scale);
      }
    }
  }
  return problem;
}

double CensusCount::value_scale() const {
  const ParallelConfig& config = setting_.census.parallel;
  return config.kv_dtype == DType::kE4M3 ? config.k_scale : 1.0;
}

void CensusCount::describe(const Row& row, const CensusMiss& miss) {
  first_ = fmt::format("stage {}, rank {}: {}tensor {}[{}, {}, {}]: request {}, position {} {}; {}",
                       stage_, rank_, row.part, row.tensor, row.row, row.head,
                       miss.position % setting_.pass.width, miss.request, miss.position,
                       verdict(miss), whereabouts(setting_, miss));
}

Check CensusCount::check() const {
  Check check{stage_, rank_, fmt::format("each key once ({} channels)", setting_.pass.width)};
  check.measured = static_cast<double>(wrong_);
  check.status = wrong_ == 0 ? CheckStatus::kPass : CheckStatus::kFail;
  check.message = first_;
  return check;
}

}  // namespace mladcp
