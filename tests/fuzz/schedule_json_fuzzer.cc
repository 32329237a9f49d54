// libFuzzer target: any bytes are schedules that can be judged or an InvalidArgument, never
// anything else.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "harness/schedule_file.h"
#include "reference/schedule_laws.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    for (const mladcp::ForeignSchedule& schedule : mladcp::parse_schedules(text, "fuzz.jsonl")) {
      mladcp::judge_schedule({schedule.dialect, schedule.lengths, schedule.parts,
                              schedule.num_splits, schedule.block, schedule.overhead_blocks});
      mladcp::judge_part_count(static_cast<std::int64_t>(schedule.parts.size()),
                               schedule.num_sms.value_or(132), schedule.heads_times_q.value_or(128),
                               1);
    }
  } catch (const mladcp::InvalidArgument&) {
  }
  return 0;
}
