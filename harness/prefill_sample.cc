#include "harness/prefill_sample.h"

#include <algorithm>

#include "harness/random.h"

namespace mladcp {
namespace {

constexpr std::int64_t kRows = 128;    // of a step, about
constexpr double kAuditWork = 1e11;    // floating-point operations of one group
constexpr std::uint64_t kHeads = ~0U;  // the draw of the first head, apart from those of rows

// One row of every `stride`, drawn so that no fault's own stride can pass between them.
std::vector<std::int64_t> sampled_rows(std::span<const PrefillRequest> requests, std::uint64_t seed,
                                       bool all) {
  std::int64_t total = 0;
  for (const PrefillRequest& request : requests) total += request.new_tokens;
  const std::int64_t stride = all ? 1 : std::max<std::int64_t>(1, total / kRows);
  std::vector<std::int64_t> rows;
  std::int64_t begin = 0;
  for (const PrefillRequest& request : requests) {
    const std::int64_t end = begin + request.new_tokens;
    for (std::int64_t t = begin; t < end; ++t) {
      const auto bucket = static_cast<std::uint64_t>(t / stride);
      const auto drawn = static_cast<std::int64_t>(random_bits(seed, RandomStream::kAudit, bucket) %
                                                   static_cast<std::uint64_t>(stride));
      if (t % stride == drawn || t == begin || t + 1 == end) rows.push_back(t);
    }
    begin = end;
  }
  return rows;
}

// Floating-point operations of one head, roughly: the up-projection of every key and a dozen
// products a row and key.
double work_of_a_head(const MlaDims& dims, std::span<const PrefillRequest> requests,
                      std::int64_t rows) {
  double work = 0.0;
  double total = 0.0;
  for (const PrefillRequest& request : requests) total += static_cast<double>(request.new_tokens);
  for (const auto& [context, added] : requests) {
    if (added == 0) continue;
    const double sampled = static_cast<double>(rows) * static_cast<double>(added) / total;
    const auto width = static_cast<double>(dims.nope + dims.value);
    work += 2.0 * static_cast<double>(context + added) * width *
            (static_cast<double>(dims.latent) + 12.0 * sampled);
  }
  return work;
}

std::int64_t head_count(const Scenario& scenario, double work) {
  const std::int64_t heads = scenario.parallel.local_heads();
  if (scenario.audit == "all") return heads;
  if (scenario.audit != "auto") return std::min<std::int64_t>(heads, std::stoll(scenario.audit));
  const double of_a_rank = kAuditWork / static_cast<double>(scenario.parallel.dcp);
  return static_cast<std::int64_t>(
      std::clamp(of_a_rank / std::max(1.0, work), 1.0, static_cast<double>(heads)));
}

}  // namespace

PrefillSample sample_prefill(const Scenario& scenario, const MlaDims& dims,
                             std::span<const PrefillRequest> requests) {
  PrefillSample sample;
  sample.rows = sampled_rows(requests, scenario.seed, scenario.audit == "all");
  const auto rows = static_cast<std::int64_t>(sample.rows.size());
  const std::int64_t count = head_count(scenario, work_of_a_head(dims, requests, rows));
  const std::int64_t heads = scenario.parallel.local_heads();
  const auto first = static_cast<std::int64_t>(
      random_bits(scenario.seed, RandomStream::kAudit, kHeads) % static_cast<std::uint64_t>(heads));
  for (std::int64_t i = 0; i < count; ++i)
    sample.heads.push_back((first + i * heads / count) % heads);
  std::sort(sample.heads.begin(), sample.heads.end());
  return sample;
}

}  // namespace mladcp
