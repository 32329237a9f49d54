// Files that somebody names on the command line.
#pragma once

#include <string>

namespace mladcp {

// All of it, at most 256 MiB: /dev/zero has no end. A pipe is read as well, `<(jq ...)`, but nobody
// waits for one that nobody writes to. InvalidArgument names the path and why it cannot be read.
std::string read_file(const std::string& path);

}  // namespace mladcp
