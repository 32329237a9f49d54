// A group of ranks under test, whatever makes it: threads, processes, GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collective.h"

namespace mladcp {

struct RankUnderTest {
  Collective& collective;
  Device& device;
  Stream stream;
};

// What a rank found wrong, empty when nothing was.
using RankBody = std::function<std::string(RankUnderTest&)>;

class GroupUnderTest {
 public:
  virtual ~GroupUnderTest() = default;

  virtual int world_size() const = 0;
  // Runs body on every rank of this process (under MPI that is one) and returns what was found
  // wrong. Exceptions of the body are thrown on here, on the main thread.
  virtual std::vector<std::string> run(const RankBody& body) = 0;
};

struct GroupCase {
  std::string name;  // "InProcess3": the readable part of a test's name
  std::function<std::unique_ptr<GroupUnderTest>()> make;  // throws Unsupported where it cannot be
  bool compares_calls = true;      // ranks exchange their calls, so that a difference is an error
  bool sums_in_rank_order = true;  // bits of a sum are those of Device::sum_in_rank_order
};

inline void PrintTo(const GroupCase& group_case, std::ostream* out) { *out << group_case.name; }

}  // namespace mladcp
