// What a side stream waits for, what waits for it, and that its handles end with it.
#include "core/side_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/handle_counts.h"

namespace mladcp {
namespace {

// Notes records and waits, by the numbers of the handles.
class OrderDevice final : public HandleCounts {
 public:
  void record(Event event, Stream stream) override {
    log.push_back("record " + name(event.handle) + " on " + name(stream.handle));
  }
  void wait(Stream stream, Event event) override {
    log.push_back("wait on " + name(stream.handle) + " for " + name(event.handle));
  }
  std::string name(void* handle) const { return std::to_string(number(handle)); }

  std::vector<std::string> log;
};

TEST(SideStream, RunsAfterTheMarkAndBeforeWhatFollows) {
  OrderDevice device;
  const Stream main = device.create_stream();  // 0
  const SideStream side(device);               // stream 1, fork 2, join 3
  side.mark(main);
  device.log.emplace_back("main goes on");
  side.run_beside(main, [&](Stream stream) {
    device.log.push_back("enqueue on " + device.name(stream.handle));
  });
  EXPECT_EQ(device.log,
            (std::vector<std::string>{"record 2 on 0", "main goes on", "wait on 1 for 2",
                                      "enqueue on 1", "record 3 on 1", "wait on 0 for 3"}));
}

TEST(SideStream, EndsItsHandlesAlsoWhereOneCannotBeMade) {
  HandleCounts device;
  { const SideStream side(device); }
  EXPECT_EQ(device.made(), 3);
  EXPECT_EQ(device.alive(), 0);
  for (const int failing : {0, 1, 2}) {
    HandleCounts poor(failing);
    EXPECT_THROW(SideStream{poor}, Error);
    EXPECT_EQ(poor.made(), failing);
    EXPECT_EQ(poor.alive(), 0);
  }
}

}  // namespace
}  // namespace mladcp
