#include "tests/support/test_data.h"

namespace mladcp {

std::string test_data_path(const std::string& file) {
  return std::string(MLADCP_TEST_DATA_DIR) + "/" + file;
}

}  // namespace mladcp
