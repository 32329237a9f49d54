// What to say when ranks enter one collective with different descriptions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/collective.h"

namespace mladcp {

// Empty when all calls are equal. Otherwise one message for all ranks:
//   "ranks disagree: ranks 0, 2 call all_gather #3 'query' dim 1 ...; rank 1 calls ...;
//    rank 1 against rank 0: in_shape [3] against [4]"
std::string mismatch_message(std::span<const CollectiveCall> call_of_rank);

// "rank 3", "ranks 0, 2".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace mladcp
