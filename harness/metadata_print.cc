// The report of `mladcp metadata` for a person at a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "harness/metadata_report.h"

namespace mladcp {
namespace {

constexpr std::string_view kEighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::int64_t kBarWidth = 16;
constexpr std::size_t kMaxPrintedViolations = 50;

std::string bar(std::int64_t value, std::int64_t most) {
  const std::int64_t cells = most == 0 ? 0 : (value * kBarWidth + most - 1) / most;
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) text += i < cells ? "█" : "·";
  return text;
}

std::string part_text(const ScheduleSide& side, std::int64_t p, std::int64_t most) {
  const Schedule& schedule = side.schedule;
  if (p >= schedule.num_parts()) return std::string(58, ' ');
  const SchedulePart part = read_part(schedule.parts, p);
  if (is_idle(part, schedule.requests(), schedule.dialect)) {
    return fmt::format("{:>4}  {:<52}", p, "idle");
  }
  return fmt::format("{:>4} {:>12} {:>12} {:>4} {:>6} {}", p,
                     fmt::format("{}:{}", part.begin_request, part.begin),
                     fmt::format("{}:{}", part.end_request, part.end), part.begin_split,
                     side.loads[p], bar(side.loads[p], most));
}

std::int64_t busy_parts(const ScheduleSide& side) {
  return side.schedule.num_parts() - std::count(side.loads.begin(), side.loads.end(), 0);
}

void print_parts(const MetadataReport& report, std::FILE* stream) {
  const ScheduleSide& left = report.gathered;
  const ScheduleSide& right = report.local;
  const std::int64_t most = std::max(*std::max_element(left.loads.begin(), left.loads.end()),
                                     *std::max_element(right.loads.begin(), right.loads.end()));
  const std::string unit = report.scenario.dialect == ScheduleDialect::kTokens ? "token" : "block";
  const std::string head = fmt::format("{:>4} {:>12} {:>12} {:>4} {:>6} {:<16}", "part",
                                       "request:" + unit, "to", "cut", "blocks", "load");
  fmt::print(stream, "{}   {}\n", head, head);
  const std::int64_t rows = std::max(left.schedule.num_parts(), right.schedule.num_parts());
  const std::int64_t busy = std::max(busy_parts(left), busy_parts(right));
  for (std::int64_t p = 0; p < std::min(rows, busy + 1); ++p) {
    fmt::print(stream, "{}   {}\n", part_text(left, p, most), part_text(right, p, most));
  }
  if (busy + 1 < rows) fmt::print(stream, "     ... all further parts are idle\n");
}

void print_sms(const char* label, const ScheduleSide& side, std::int64_t most, std::FILE* stream) {
  fmt::print(stream, "\nload of each SM, {}, full height {} blocks\n", label, most);
  constexpr std::size_t kPerLine = 66;
  const std::vector<std::int64_t>& loads = side.timeline.sm_load;
  for (std::size_t begin = 0; begin < loads.size(); begin += kPerLine) {
    std::string line;
    for (std::size_t sm = begin; sm < std::min(begin + kPerLine, loads.size()); ++sm) {
      line += kEighths[most == 0 ? 0 : (loads[sm] * 8 + most - 1) / most];
    }
    fmt::print(stream, "  SM {:>4} |{}|\n", begin, line);
  }
}

void print_summary(const MetadataReport& report, std::FILE* stream) {
  const ScheduleSide& left = report.gathered;
  const ScheduleSide& right = report.local;
  const auto row = [&](std::string_view what, const auto& a, const auto& b) {
    fmt::print(stream, "{:<34} {:>16} {:>16}\n", what, a, b);
  };
  row("\nscheduled for", fmt::format("{} gathered", left.heads),
      fmt::format("{} local", right.heads));
  row("parts (of them busy)", fmt::format("{} ({})", left.schedule.num_parts(), busy_parts(left)),
      fmt::format("{} ({})", right.schedule.num_parts(), busy_parts(right)));
  row("thread blocks a part", left.tiles, right.tiles);
  row("payload of a part, blocks", left.payload, right.payload);
  row("makespan, blocks", left.timeline.makespan, right.timeline.makespan);
  row("mean load of an SM, blocks", fmt::format("{:.2f}", left.timeline.mean_load()),
      fmt::format("{:.2f}", right.timeline.mean_load()));
  row("imbalance (makespan / mean)", fmt::format("{:.3f}", left.timeline.imbalance()),
      fmt::format("{:.3f}", right.timeline.imbalance()));
  row("partial results", left.schedule.num_splits.back(), right.schedule.num_splits.back());
  row("fp32 partials moved, MB",
      fmt::format("{:.2f}", static_cast<double>(left.partial_bytes) * 1e-6),
      fmt::format("{:.2f}", static_cast<double>(right.partial_bytes) * 1e-6));
  fmt::print(stream, "attention itself: {:.3f} GFLOP, {:.2f} MB of cache, query and output\n",
             static_cast<double>(report.flops) * 1e-9, static_cast<double>(report.bytes) * 1e-6);
}

// The difference in a sentence.
void print_conclusion(const MetadataReport& report, std::FILE* stream) {
  const ScheduleSide& left = report.gathered;
  const ScheduleSide& right = report.local;
  if (left.schedule.parts == right.schedule.parts) {
    fmt::print(stream,
               "\nlocal heads give the same schedule here: this shape cannot show that "
               "fault\n");
    return;
  }
  std::string text = "there is no work either way";
  if (left.timeline.makespan > 0) {
    const double percent = 100.0 * (static_cast<double>(right.timeline.makespan) /
                                        static_cast<double>(left.timeline.makespan) -
                                    1.0);
    text = fmt::format("the step takes {} instead of {} blocks of time ({:+.1f} %)",
                       right.timeline.makespan, left.timeline.makespan, percent);
  }
  fmt::print(stream, "\nscheduled for local heads {}, with {} instead of {} partial results\n",
             text, right.schedule.num_splits.back(), left.schedule.num_splits.back());
}

void print_violations(const std::vector<ScheduleViolation>& violations, std::string_view of,
                      std::size_t& left, std::FILE* stream) {
  for (const ScheduleViolation& violation : violations) {
    if (left == 0) return;
    --left;
    fmt::print(stream, "FAIL {}, law {}: {}\n", of, violation.law, violation.message);
  }
}

}  // namespace

void print(const MetadataReport& report, std::FILE* stream) {
  const MetadataScenario& scenario = report.scenario;
  std::size_t room = kMaxPrintedViolations;
  print_violations(report.gathered.violations, "schedule for gathered heads", room, stream);
  print_violations(report.local.violations, "schedule for local heads", room, stream);
  const std::int64_t keys =
      std::accumulate(scenario.lengths.begin(), scenario.lengths.end(), std::int64_t{0});
  fmt::print(stream,
             "mladcp metadata: {} requests, {} keys on this rank; {} heads x DCP {} = {} gathered, "
             "q_len {}; {} SMs, dialect {}, {} cache\n\n",
             scenario.lengths.size(), keys, scenario.heads, scenario.dcp, scenario.gathered_heads(),
             scenario.q_len, scenario.params.num_sms, name(scenario.dialect),
             name(scenario.kv_dtype));
  fmt::print(stream, "{:<61}{}\n",
             fmt::format("scheduled for {} gathered heads", report.gathered.heads),
             fmt::format("scheduled for {} local heads", report.local.heads));
  print_parts(report, stream);
  const std::int64_t most =
      std::max(report.gathered.timeline.makespan, report.local.timeline.makespan);
  print_sms("gathered heads", report.gathered, most, stream);
  print_sms("local heads", report.local, most, stream);
  print_summary(report, stream);
  print_conclusion(report, stream);
  fmt::print(stream, "{}: both schedules judged by {} laws; {:.3f} s\n",
             report.pass() ? "PASS" : "FAIL", std::size(kScheduleLaws), report.seconds);
}

void print(const JudgedFile& file, std::FILE* stream) {
  std::size_t room = kMaxPrintedViolations;
  for (const JudgedSchedule& schedule : file.schedules) {
    print_violations(schedule.violations, fmt::format("schedule {}:{}", file.path, schedule.line),
                     room, stream);
  }
  const auto violations = static_cast<std::size_t>(file.violations());
  if (violations > kMaxPrintedViolations) {
    fmt::print(stream, "... and {} more violations; --json lists all\n",
               violations - kMaxPrintedViolations);
  }
  const auto bad = std::count_if(file.schedules.begin(), file.schedules.end(),
                                 [](const JudgedSchedule& s) { return !s.violations.empty(); });
  fmt::print(stream, "{}: {} of {} schedules in {} break a law; {:.3f} s\n",
             violations == 0 ? "PASS" : "FAIL", bad, file.schedules.size(), file.path,
             file.seconds);
}

}  // namespace mladcp
