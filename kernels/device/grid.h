// Sizes of grids: grid-stride loops over as many blocks as keep a card busy.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"

namespace mladcp {

// Enough blocks to fill any card several times over; the loops inside take what is left.
constexpr std::int64_t kMostBlocks = 1 << 16;

inline unsigned grid_blocks(std::int64_t work_items, std::int64_t items_per_block) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(work_items, items_per_block), 1, kMostBlocks));
}

}  // namespace mladcp
