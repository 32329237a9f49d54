// Paths for files that a test writes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace mladcp {

// In the folder for temporary files, of this process and test alone: other builds' tests may run at
// the same time.
inline std::string temporary_path(const std::string& name) {
  return testing::TempDir() + "mladcp_" + std::to_string(getpid()) + "_" +
         testing::UnitTest::GetInstance()->current_test_info()->name() + "_" + name;
}

}  // namespace mladcp
