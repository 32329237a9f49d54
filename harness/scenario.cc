#include "harness/scenario.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/ceil_div.h"
#include "core/chunk_plan.h"
#include "core/error.h"
#include "core/scheduler.h"
#include "harness/probe.h"

namespace mladcp {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // positions; a local row index is int32
constexpr std::int64_t kMostNewTokens = std::int64_t{1} << 20;  // of a request in a step
constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();
constexpr double kLongestTimeout = 1e6;  // seconds
// Here one deviation of the contents, 1, is the largest code, 448, or the step of the smallest
// ones, 2^-9: a third of them saturates or is 0. Further out all do, and equal keys round alike,
// which no bound allows for.
constexpr float kLeastContentScale = 1.0F / 448.0F;
constexpr float kMostContentScale = 512.0F;

void expect_one_of(const char* field, const std::string& value,
                   const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& entry : known) {
    if (entry == value) return;
    list += (list.empty() ? "" : ", ") + entry;
  }
  throw InvalidArgument(std::string(field) + " = '" + value + "': use one of " + list);
}

void expect_lengths(const char* field, const std::vector<std::int64_t>& lengths,
                    std::int64_t most) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] >= 0 && lengths[i] <= most) continue;
    throw InvalidArgument(
        fmt::format("{}[{}] = {}: must be between 0 and {}", field, i, lengths[i], most));
  }
}

void expect_scale(const char* field, float scale) {
  if (scale >= kLeastContentScale && scale <= kMostContentScale) return;
  throw InvalidArgument(fmt::format(
      "{} = {}: must be from {} (1/448) to {}, for codes to hold contents of deviation 1", field,
      scale, kLeastContentScale, kMostContentScale));
}

// Of the scales that are used: of another its range is not what is wrong (expect_meaning).
void expect_scales(const Scenario& scenario) {
  const ParallelConfig& config = scenario.parallel;
  const bool decodes = scenario.phase != Phase::kPrefill;
  if (decodes && config.quantized_query()) expect_scale("q_scale", config.q_scale);
  if (config.kv_dtype == DType::kE4M3) expect_scale("k_scale", config.k_scale);
}

void expect_as_many(const char* field, std::size_t got, const char* of_field, std::size_t wanted) {
  if (got == wanted) return;
  throw InvalidArgument(std::string(field) + " has " + std::to_string(got) + " entries but " +
                        of_field + " has " + std::to_string(wanted) +
                        ": give one of each per request, or one of new_tokens for all");
}

void validate_audit(const std::string& audit) {
  if (audit == "auto" || audit == "all") return;
  const bool number = !audit.empty() && audit.size() < 10 &&
                      audit.find_first_not_of("0123456789") == std::string::npos;
  if (number && std::stoll(audit) > 0) return;
  throw InvalidArgument("audit = '" + audit +
                        "': use auto, all, or how many heads of a rank, at "
                        "least 1");
}

// Twice judged is twice counted.
void validate_probes(const std::vector<std::string>& probes) {
  if (probes.empty()) {
    throw InvalidArgument("probe = []: nothing would be judged; name a probe, or all");
  }
  std::set<std::string> named;
  for (const std::string& probe : probes) {
    if (probe != "all") find_probe(probe);
    if (named.insert(probe).second) continue;
    throw InvalidArgument("probe = '" + probe + "' is named twice: keep one");
  }
  if (named.count("all") != 0 && named.size() > 1) {
    throw InvalidArgument("probe = 'all' beside others: it is all of them, leave the others out");
  }
}

// A setting that says nothing in this scenario and yet is not at its default: somebody expects of
// it what will not happen. What a group of one has no use for, interleave or combine, is none of
// these: a sweep over dcp may begin at 1.
void expect_meaning(const Scenario& s) {
  struct Setting {
    const char* field;
    bool given;
    bool means_something;
    const char* belongs_to;
    std::string_view here;
  };
  const bool decodes = s.phase != Phase::kPrefill;
  const bool prefills = s.phase != Phase::kDecode;
  const bool peers = s.collective != "fake";
  const std::string_view phase = name(s.phase);
  const Scenario plain;
  const ParallelConfig& config = s.parallel;
  const char* const to_decode = "phases decode and both; leave it out";
  const char* const to_prefill = "phases prefill and both; leave it out";
  const Setting settings[] = {
      {"seq_lens", !s.seq_lens.empty(), decodes,
       "phases decode and both; prefill takes context_lens and new_tokens", phase},
      {"q_len", s.q_len != plain.q_len, decodes, "phases decode and both; prefill takes new_tokens",
       phase},
      {"context_lens", !s.context_lens.empty(), !decodes,
       "phase prefill; decode takes seq_lens, both the seq_lens its conversations reach", phase},
      {"new_tokens", !s.new_tokens.empty(), prefills, "phases prefill and both; decode takes q_len",
       phase},
      {"workspace", s.workspace_rows != plain.workspace_rows, prefills, to_prefill, phase},
      {"audit", s.audit != plain.audit, prefills, to_prefill, phase},
      {"query", config.query != plain.parallel.query, decodes, to_decode, phase},
      {"q_scale", config.q_scale != plain.parallel.q_scale, decodes, to_decode, phase},
      {"reduce_dtype", config.reduce_dtype != plain.parallel.reduce_dtype, decodes, to_decode,
       phase},
      {"combine", config.combine != plain.parallel.combine, decodes, to_decode, phase},
      {"project_before_merge", config.project_before_merge, decodes, to_decode, phase},
      {"replicate_query", config.replicate_query, decodes, to_decode, phase},
      {"q_scale", config.q_scale != plain.parallel.q_scale, config.quantized_query(),
       "query quantized; leave it out", name(QueryForm::kPair)},
      {"k_scale", config.k_scale != plain.parallel.k_scale, config.kv_dtype == DType::kE4M3,
       "kv_dtype fp8; leave it out", name(config.kv_dtype)},
      {"reduce_dtype", config.reduce_dtype != plain.parallel.reduce_dtype,
       config.combine == Combine::kAllGatherReduceScatter, "combine ag_rs; leave it out",
       name(config.combine)},
      {"validate", s.validate, peers, "collectives with peers to compare with; leave it out",
       s.collective},
      {"timeout", s.timeout_s != plain.timeout_s, peers,
       "collectives with peers to wait for; leave it out", s.collective},
  };
  for (const Setting& setting : settings) {
    if (!setting.given || setting.means_something) continue;
    throw InvalidArgument(fmt::format("{} means nothing in {}: it belongs to {}", setting.field,
                                      setting.here, setting.belongs_to));
  }
}

constexpr double kMostPlanBytes = 4e9;

struct ChunkPlanSize {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;    // of a rank
  std::int64_t chunks = 0;  // at least
  double bytes_a_chunk = 0.0;
  double bytes_of_rows = 0.0;  // however many chunks they are in

  double bytes() const { return static_cast<double>(chunks) * bytes_a_chunk + bytes_of_rows; }
};

// Of a chunk, N + 3 index arrays are as long as the batch, however few requests it holds, and two
// list its rows and tokens (ContextChunk). 256 bytes: a rank's record of the chunk's collective.
ChunkPlanSize size_of_plan(const std::vector<std::int64_t>& contexts,
                           const ChunkGeometry& geometry) {
  ChunkPlanSize size;
  for (const std::int64_t context : contexts) {
    size.tokens += context;
    size.rows += geometry.sharding.padded_rows(context);
  }
  size.chunks = ceil_div(size.rows, geometry.local_rows());
  const auto requests = static_cast<double>(contexts.size());
  const auto n = static_cast<double>(geometry.sharding.world_size);
  size.bytes_a_chunk = 4.0 * requests * (n + 3.0) + 256.0 * n;
  size.bytes_of_rows = 4.0 * static_cast<double>(size.tokens + size.rows);
  return size;
}

// "a workspace of at least about 47168 rows, or ", the least that may do; nothing where none does.
std::string larger_workspace(const ChunkPlanSize& size, const ChunkGeometry& geometry) {
  const double chunks = std::floor((kMostPlanBytes - size.bytes_of_rows) / size.bytes_a_chunk);
  if (chunks < 1.0) return "";
  const std::int64_t local_rows = ceil_div(size.rows, static_cast<std::int64_t>(chunks));
  const std::int64_t cut = geometry.cut();
  const std::int64_t rows = ceil_div(local_rows * geometry.sharding.world_size, cut) * cut;
  if (rows > kMostInt32) return "";
  return fmt::format("a workspace of at least about {} rows, or ", rows);
}

void expect_plan_in_memory(const Scenario& scenario, const ChunkGeometry& geometry) {
  const bool both = scenario.phase == Phase::kBoth;
  const auto& contexts = both ? scenario.seq_lens : scenario.context_lens;
  const ChunkPlanSize size = size_of_plan(contexts, geometry);
  if (size.bytes() <= kMostPlanBytes) return;
  throw InvalidArgument(
      fmt::format("{} has {} entries, {} tokens: a plan of about {} chunks would take {:.0f} GB, "
                  "more than {:.0f}; give {}fewer or shorter requests",
                  both ? "seq_lens" : "context_lens", contexts.size(), size.tokens, size.chunks,
                  size.bytes() * 1e-9, kMostPlanBytes * 1e-9, larger_workspace(size, geometry)));
}

// In the words of this program what the planner says of its own fields.
void expect_geometry(const Scenario& scenario, const ChunkGeometry& geometry) {
  try {
    validate(geometry);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("workspace = {} with dcp = {}: {}", scenario.workspace_rows,
                                      scenario.parallel.dcp, error.what()));
  }
}

void expect_schedulable(const Scenario& scenario) {
  const auto requests = static_cast<std::int64_t>(scenario.seq_lens.size());
  if (requests <= kMaxScheduledRequests) return;
  throw InvalidArgument(fmt::format(
      "seq_lens has {} entries: a decode step schedules at most {}; give fewer requests", requests,
      kMaxScheduledRequests));
}

void validate_prefill(const Scenario& scenario) {
  const std::size_t added = scenario.new_tokens.size();
  if (scenario.phase == Phase::kBoth) {
    expect_as_many("new_tokens", added, "seq_lens", scenario.seq_lens.size());
  } else {
    expect_as_many("context_lens", scenario.context_lens.size(), "new_tokens", added);
  }
  const std::int64_t rows = scenario.workspace_rows;
  if (rows < 1 || rows > kMostInt32) {
    throw InvalidArgument(fmt::format(
        "workspace = {}: must be between 1 and {}, or 0 for the default", rows, kMostInt32));
  }
  const ParallelConfig& config = scenario.parallel;
  const ChunkGeometry geometry{config.sharding(), config.page_size, scenario.workspace_rows};
  expect_geometry(scenario, geometry);
  expect_plan_in_memory(scenario, geometry);
}

}  // namespace

std::string_view name(Phase phase) {
  switch (phase) {
    case Phase::kDecode:
      return "decode";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kBoth:
      return "both";
  }
  return "?";
}

Phase phase_from_name(std::string_view text) {
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill, Phase::kBoth}) {
    if (name(phase) == text) return phase;
  }
  throw InvalidArgument("phase = '" + std::string(text) + "': use one of decode, prefill, both");
}

std::vector<StepRequest> Scenario::step_requests() const {
  std::vector<StepRequest> requests;
  if (phase == Phase::kPrefill) {
    for (std::size_t b = 0; b < context_lens.size(); ++b) {
      requests.push_back({context_lens[b] + new_tokens[b], new_tokens[b]});
    }
    return requests;
  }
  requests.reserve(seq_lens.size());
  // A length below q_len is a padded row of a captured batch: its first rows have no position.
  for (const std::int64_t length : seq_lens) requests.push_back({length, q_len});
  return requests;
}

void validate(const Scenario& scenario) {
  model_from_name(scenario.model);
  expect_scales(scenario);
  validate(scenario.parallel);
  const std::int64_t groups = scenario.parallel.groups();
  if (scenario.group < -1 || scenario.group >= groups) {
    throw InvalidArgument("group = " + std::to_string(scenario.group) +
                          ": must be -1 (all) or 0 to " + std::to_string(groups - 1) +
                          " (tp / dcp groups)");
  }
  if (scenario.q_len <= 0) {
    throw InvalidArgument("q_len = " + std::to_string(scenario.q_len) + ": must be at least 1");
  }
  if (scenario.q_len > kMostNewTokens) {
    throw InvalidArgument("q_len = " + std::to_string(scenario.q_len) + ": must be at most " +
                          std::to_string(kMostNewTokens));
  }
  if (!(scenario.timeout_s > 0 && scenario.timeout_s <= kLongestTimeout)) {
    throw InvalidArgument(
        fmt::format("timeout = {}: must be a number of seconds above 0, at most {}",
                    scenario.timeout_s, kLongestTimeout));
  }
  validate_probes(scenario.probes);
  expect_one_of("device", scenario.device, {"cpu", "cuda"});
  expect_one_of("collective", scenario.collective, {"in_process", "fake", "mpi", "nccl"});
  expect_lengths("seq_lens", scenario.seq_lens, kLongest);
  expect_lengths("context_lens", scenario.context_lens, kLongest);
  expect_lengths("new_tokens", scenario.new_tokens, kMostNewTokens);
  validate_audit(scenario.audit);
  expect_meaning(scenario);
  expect_schedulable(scenario);
  if (scenario.phase != Phase::kDecode) validate_prefill(scenario);
}

}  // namespace mladcp
