// Where the files of tests/golden and tests/data are, whatever the working directory.
#pragma once

#include <string>

namespace mladcp {

// `file` is relative to tests/, for example "golden/hopper_fp8_dots.safetensors".
std::string test_data_path(const std::string& file);

}  // namespace mladcp
