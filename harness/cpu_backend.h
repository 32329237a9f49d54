// The backend of simulated ranks on the host.
#pragma once

#include <memory>

#include "harness/backend.h"

namespace mladcp {

std::unique_ptr<Backend> make_cpu_backend(int ranks);

}  // namespace mladcp
