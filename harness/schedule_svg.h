// A picture of schedules at work: every SM a row, time to the right, a colour a request.
#pragma once

#include <span>
#include <string>

#include "core/schedule_work.h"

namespace mladcp {

// One half of the picture. The pale start of a piece is the overhead of picking up a request.
struct SchedulePanel {
  std::string title;
  std::string subtitle;
  std::span<const SchedulePiece> pieces;  // of the schedule, in order
  const SmTimeline* timeline = nullptr;   // of the same schedule
  std::int64_t overhead_blocks = 5;
};

// Both panels share the time axis, so that a longer one looks longer.
std::string schedule_svg(const std::string& title, const SchedulePanel& left,
                         const SchedulePanel& right);

}  // namespace mladcp
