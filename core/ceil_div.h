// Division that rounds up.
#pragma once

#include <cstdint>

namespace mladcp {

// The least q with q * b >= a; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace mladcp
