#include "harness/schedule_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

namespace mladcp {
namespace {

constexpr double kPanelWidth = 620;
constexpr double kMargin = 56;  // left of a panel, for the SM numbers
constexpr double kTop = 92;
constexpr double kBottom = 64;

// Neighbouring requests get distant hues: steps of the golden angle.
std::string colour(std::int64_t request) {
  const double hue = std::fmod(static_cast<double>(request) * 137.50776405, 360.0);
  const double lightness = request % 2 == 0 ? 0.46 : 0.60;
  const double chroma = (1 - std::abs(2 * lightness - 1)) * 0.65;
  const auto channel = [&](double offset) {
    const double k = std::fmod(offset + hue / 30, 12.0);
    const double value = lightness - chroma / 2 * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}));
    return static_cast<int>(std::lround(255 * value));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(8), channel(4));
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

class Svg {
 public:
  Svg(double width, double height) {
    line(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' "
        "viewBox='0 0 {0:.0f} {1:.0f}' font-family='sans-serif' font-size='11'>",
        width, height);
    line("<rect width='100%' height='100%' fill='#ffffff'/>");
  }

  void text(double x, double y, std::string_view content, std::string_view style = "") {
    line("<text x='{:.1f}' y='{:.1f}' {}>{}</text>", x, y, style, escaped(content));
  }

  void rect(double x, double y, double width, double height, std::string_view fill, double opacity,
            std::string_view tooltip) {
    line(
        "<rect x='{:.2f}' y='{:.2f}' width='{:.2f}' height='{:.2f}' fill='{}' "
        "fill-opacity='{}'><title>{}</title></rect>",
        x, y, width, height, fill, opacity, tooltip);
  }

  void rule(double x1, double y1, double x2, double y2, std::string_view style) {
    line("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' {}/>", x1, y1, x2, y2, style);
  }

  std::string finish() { return std::move(out_) + "</svg>\n"; }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  std::string out_;
};

// 1, 2 or 5 times a power of ten: at most eight ticks.
std::int64_t tick_step(std::int64_t span) {
  for (std::int64_t decade = 1;; decade *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (span / (factor * decade) <= 8) return factor * decade;
    }
  }
}

struct Frame {
  double left;        // of the rows
  double row;         // height of an SM's row
  double scale;       // pixels a block
  std::int64_t span;  // blocks of the axis
};

void draw_runs(Svg& svg, const SchedulePanel& panel, const Frame& frame) {
  // Where each part's pieces begin in panel.pieces, which are ordered by part.
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < panel.pieces.size(); ++i) {
    while (static_cast<std::int64_t>(first.size()) <= panel.pieces[i].part) first.push_back(i);
  }
  for (const SmRun& run : panel.timeline->runs) {
    const double y = kTop + static_cast<double>(run.sm) * frame.row;
    std::int64_t at = run.begin;
    for (std::size_t i = first[static_cast<std::size_t>(run.part)];
         i < panel.pieces.size() && panel.pieces[i].part == run.part; ++i) {
      const SchedulePiece& piece = panel.pieces[i];
      const std::string tooltip =
          fmt::format("SM {}, part {}, tile {}: request {}, {} keys", run.sm, run.part, run.tile,
                      piece.request, piece.keys);
      const std::string fill = colour(piece.request);
      const double x = frame.left + static_cast<double>(at) * frame.scale;
      const double overhead = static_cast<double>(panel.overhead_blocks) * frame.scale;
      svg.rect(x, y, overhead, frame.row * 0.86, fill, 0.28, tooltip);
      if (piece.blocks > 0) {
        svg.rect(x + overhead, y, static_cast<double>(piece.blocks) * frame.scale, frame.row * 0.86,
                 fill, 1, tooltip);
      }
      at += panel.overhead_blocks + piece.blocks;
    }
    if (run.begin > 0) {
      const double x = frame.left + static_cast<double>(run.begin) * frame.scale;
      svg.rule(x, y, x, y + frame.row * 0.86, "stroke='#000000' stroke-width='2'");
    }
  }
}

void draw_panel(Svg& svg, const SchedulePanel& panel, const Frame& frame) {
  const auto sms = static_cast<std::int64_t>(panel.timeline->sm_load.size());
  const double bottom = kTop + static_cast<double>(sms) * frame.row;
  const double right = frame.left + static_cast<double>(frame.span) * frame.scale;
  svg.text(frame.left, 50, panel.title, "font-size='15' font-weight='bold'");
  svg.text(frame.left, 68, panel.subtitle, "fill='#444444'");

  const std::int64_t step = tick_step(frame.span);
  for (std::int64_t tick = 0; tick <= frame.span; tick += step) {
    const double x = frame.left + static_cast<double>(tick) * frame.scale;
    svg.rule(x, kTop - 3, x, bottom + 4, "stroke='#dddddd'");
    svg.text(x, bottom + 16, fmt::format("{}", tick), "text-anchor='middle'");
  }
  svg.text((frame.left + right) / 2, bottom + 32, "blocks of keys since the launch",
           "text-anchor='middle' fill='#444444'");
  for (std::int64_t sm = 0; sm < sms; sm += std::max<std::int64_t>(1, (sms + 10) / 11)) {
    svg.text(frame.left - 6, kTop + static_cast<double>(sm) * frame.row + 8,
             fmt::format("SM {}", sm), "text-anchor='end'");
  }

  draw_runs(svg, panel, frame);

  const auto mark = [&](double blocks, std::string_view label, std::string_view style,
                        std::string_view anchor) {
    const double x = frame.left + blocks * frame.scale;
    svg.rule(x, kTop - 8, x, bottom + 4, style);
    svg.text(x, kTop - 11, label, anchor);
  };
  const double mean = panel.timeline->mean_load();
  const auto makespan = static_cast<double>(panel.timeline->makespan);
  // Two labels on one line: the mean's to the left of its rule, the makespan's to the right.
  mark(mean, fmt::format("mean {:.1f} ", mean), "stroke='#222222' stroke-dasharray='3 3'",
       "text-anchor='end'");
  mark(makespan, fmt::format(" makespan {}", panel.timeline->makespan), "stroke='#c00000'",
       "text-anchor='start' fill='#c00000'");
}

}  // namespace

std::string schedule_svg(const std::string& title, const SchedulePanel& left,
                         const SchedulePanel& right) {
  const std::size_t sms = std::max(left.timeline->sm_load.size(), right.timeline->sm_load.size());
  const double row =
      std::clamp(720.0 / static_cast<double>(std::max<std::size_t>(1, sms)), 3.0, 24.0);
  const std::int64_t span =
      std::max<std::int64_t>({1, left.timeline->makespan, right.timeline->makespan});
  // Room to the right of the longer panel for its makespan label.
  const double scale = (kPanelWidth - kMargin - 84) / static_cast<double>(span);
  const double height = kTop + static_cast<double>(sms) * row + kBottom;

  Svg svg(2 * kPanelWidth + 20, height);
  svg.text(16, 24, title, "font-size='17'");
  draw_panel(svg, left, {kMargin, row, scale, span});
  draw_panel(svg, right, {kPanelWidth + kMargin, row, scale, span});
  svg.text(16, height - 10,
           "One colour a request; its pale start is the fixed cost of picking a request up; white "
           "is an idle SM; a black tick is a thread block that had to wait for the SM.",
           "fill='#444444'");
  return svg.finish();
}

}  // namespace mladcp
