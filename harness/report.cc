#include "harness/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace mladcp {
namespace {

// The checks of one stage and name over all ranks, as one row of the table.
struct StageRow {
  std::string stage;
  std::string name;
  int ranks = 0;
  int failed = 0;
  int skipped = 0;
  std::int64_t audited = 0;
  std::int64_t auditable = 0;
  const Check* worst = nullptr;
};

double severity(const Check& check) {
  if (check.status == CheckStatus::kFail) return 1e300;
  return check.bound == 0.0 ? check.measured : check.measured / check.bound;
}

std::vector<StageRow> stage_rows(const std::vector<Check>& checks) {
  std::vector<StageRow> rows;
  for (const Check& check : checks) {
    const auto same = [&](const StageRow& row) {
      return row.stage == check.stage && row.name == check.name;
    };
    auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end()) {
      rows.push_back({check.stage, check.name});
      found = rows.end() - 1;
    }
    ++found->ranks;
    found->failed += check.status == CheckStatus::kFail ? 1 : 0;
    found->skipped += check.status == CheckStatus::kSkip ? 1 : 0;
    found->audited += check.audited;
    found->auditable += check.auditable;
    if (found->worst == nullptr || severity(check) > severity(*found->worst)) {
      found->worst = &check;
    }
  }
  return rows;
}

std::string verdict_of(const StageRow& row) {
  if (row.skipped == row.ranks) return "skipped";
  std::string verdict =
      row.failed > 0 ? fmt::format("FAIL on {} of {}", row.failed, row.ranks) : "ok";
  if (row.audited == row.auditable) return verdict;
  return fmt::format("{}, {} of {} rows x heads", verdict, row.audited, row.auditable);
}

std::string lengths_text(const std::vector<std::int64_t>& lengths) {
  if (lengths.empty()) return "none";
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::string text =
      fmt::format("{} requests, {} tokens, {} to {}", lengths.size(), sum, *least, *most);
  if (lengths.size() <= 8) text += fmt::format(" ({})", fmt::join(lengths, ", "));
  return text;
}

void print_stages(const std::vector<Check>& checks, std::FILE* stream) {
  fmt::print(stream, "{:<17} {:<44} {:>5} {:>11} {:>11}  {}\n", "stage", "compared", "ranks",
             "measured", "bound", "verdict");
  for (const StageRow& row : stage_rows(checks)) {
    const bool exact = row.worst->bound == 0.0;
    fmt::print(stream, "{:<17} {:<44} {:>5} {:>11} {:>11}  {}\n", row.stage, row.name, row.ranks,
               row.skipped == row.ranks ? "-"
               : exact                  ? fmt::format("{:.0f} wrong", row.worst->measured)
                                        : fmt::format("{:.3e}", row.worst->measured),
               row.skipped == row.ranks ? "-"
               : exact                  ? "exact"
                                        : fmt::format("{:.3e}", row.worst->bound),
               verdict_of(row));
  }
}

bool failed(const Check& check) { return check.status == CheckStatus::kFail; }

void print_first_failure(const std::vector<Check>& checks, std::FILE* stream) {
  const auto first = std::find_if(checks.begin(), checks.end(), failed);
  if (first != checks.end()) fmt::print(stream, "FAIL {}\n\n", first->message);
}

// What was not judged, and why, in the order in which it first came up.
void print_skips(const std::vector<Check>& checks, std::FILE* stream) {
  std::vector<std::pair<std::string, int>> reasons;
  for (const Check& check : checks) {
    if (check.status != CheckStatus::kSkip) continue;
    const auto same = [&](const auto& reason) { return reason.first == check.message; };
    auto found = std::find_if(reasons.begin(), reasons.end(), same);
    if (found == reasons.end()) found = reasons.insert(found, {check.message, 0});
    ++found->second;
  }
  for (const auto& [why, count] : reasons) fmt::print(stream, "skipped {}: {}\n", count, why);
}

std::string verdict_of(const std::vector<Check>& checks) {
  const auto skipped = std::count_if(checks.begin(), checks.end(), [](const Check& check) {
    return check.status == CheckStatus::kSkip;
  });
  return fmt::format("{}: {} of {} checks failed{}", all_hold(checks) ? "PASS" : "FAIL",
                     std::count_if(checks.begin(), checks.end(), failed), checks.size(),
                     skipped == 0 ? "" : fmt::format(", {} skipped", skipped));
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) * 1e-3);
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

void print_configuration(const std::string& verb, const Scenario& scenario, std::FILE* stream) {
  const ParallelConfig& config = scenario.parallel;
  fmt::print(stream,
             "mladcp {}: {}, {} heads; TP {}, DCP {}: {} group(s), {} heads a rank, {} gathered\n",
             verb, scenario.model, config.heads, config.tp, config.dcp, config.groups(),
             config.local_heads(), config.gathered_heads());
  const bool fp8 = config.kv_dtype == DType::kE4M3;
  fmt::print(stream, "  cache    {}, page {}, interleave {}{}", fp8 ? "fp8 (e4m3)" : "bf16",
             config.page_size, config.interleave,
             fp8 ? fmt::format(", k_scale {}", config.k_scale) : "");
  if (scenario.phase != Phase::kPrefill) {
    fmt::print(
        stream, "; query {}\n  combine  {}{}{}{}",
        config.quantized_query() ? fmt::format("quantized, q_scale {}", config.q_scale) : "pair",
        name(config.combine), config.reduce_dtype == DType::kF32 ? ", fp32 reduction" : "",
        config.project_before_merge ? ", project before merge" : "",
        config.replicate_query ? ", replicated query" : "");
  }
  fmt::print(stream, "\n");
  if (scenario.phase != Phase::kPrefill) {
    fmt::print(stream, "  lengths  {}; {} new token(s) each\n", lengths_text(scenario.seq_lens),
               scenario.q_len);
  }
  if (scenario.phase == Phase::kPrefill) {
    fmt::print(stream, "  context  {}\n", lengths_text(scenario.context_lens));
  }
  if (scenario.phase != Phase::kDecode) {
    fmt::print(stream, "  new      {}; workspace {} rows\n", lengths_text(scenario.new_tokens),
               scenario.workspace_rows);
  }
  fmt::print(stream, "  on       {}, collective {}, seed {}\n\n", scenario.device,
             scenario.collective, scenario.seed);
}

void print_collectives(const std::vector<CallRecord>& calls, std::FILE* stream) {
  const std::vector<CollectiveRow> rows = collective_rows(calls);
  if (rows.empty()) {
    fmt::print(stream, "\nno collectives\n");
    return;
  }
  fmt::print(stream, "\n{:<3} {:<15} {:<8} {:<3} {:<5} {:<19} {:<19} {:>10}  {}\n", "#",
             "collective", "stage", "dim", "dtype", "in", "out", "wire", "ranks");
  print_ends(rows.size(), stream, [&](std::size_t i) {
    const CollectiveRow& row = rows[i];
    fmt::print(stream, "{:<3} {:<15} {:<8} {:<3} {:<5} {:<19} {:<19} {:>10}  {}\n",
               row.call.sequence, name(row.call.op), row.call.stage, row.call.dim,
               name(row.call.dtype), to_string(row.call.in_shape), to_string(row.call.out_shape),
               bytes_text(row.wire_bytes), row.ranks.size());
  });
}

std::vector<CollectiveRow> collective_rows(const std::vector<CallRecord>& calls) {
  std::map<std::int64_t, std::vector<CollectiveRow>> by_sequence;
  for (const CallRecord& record : calls) {
    std::vector<CollectiveRow>& rows = by_sequence[record.call.sequence];
    const auto same = [&](const CollectiveRow& row) { return row.call == record.call; };
    auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end()) found = rows.insert(found, {record.call, record.wire_bytes, {}});
    found->ranks.push_back(record.rank);
  }
  std::vector<CollectiveRow> all;
  for (auto& [sequence, rows] : by_sequence) {
    std::move(rows.begin(), rows.end(), std::back_inserter(all));
  }
  return all;
}

void print_ends(std::size_t count, std::FILE* stream,
                const std::function<void(std::size_t)>& print_line) {
  constexpr std::size_t kFirst = 8, kLast = 4;
  const bool all = count <= kFirst + kLast + 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (!all && i == kFirst) {
      fmt::print(stream, "... {} more; --json has all {}\n", count - kFirst - kLast, count);
      i = count - kLast;
    }
    print_line(i);
  }
}

void print(const Report& report, std::FILE* stream) {
  print_first_failure(report.checks, stream);
  print_configuration(report.verb, report.scenario, stream);
  print_stages(report.checks, stream);
  print_collectives(report.calls, stream);
  fmt::print(stream, "\n");
  print_skips(report.checks, stream);
  fmt::print(stream, "{}; {:.2f} s, of which the step {:.2f} s\n", verdict_of(report.checks),
             report.seconds, report.step_seconds);
}

void print(const DumpReport& report, std::FILE* stream) {
  print_first_failure(report.checks, stream);
  fmt::print(stream, "mladcp check: {}\n\n", fmt::join(report.files, ", "));
  print_stages(report.checks, stream);
  fmt::print(stream, "\n");
  print_skips(report.checks, stream);
  fmt::print(stream, "{}; {:.2f} s\n", verdict_of(report.checks), report.seconds);
}

}  // namespace mladcp
