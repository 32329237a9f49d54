#include "collectives/mismatch.h"

namespace mladcp {
namespace {

std::vector<std::vector<int>> ranks_by_call(std::span<const CollectiveCall> call_of_rank) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < static_cast<int>(call_of_rank.size()); ++rank) {
    bool known = false;
    for (std::vector<int>& group : groups) {
      if (call_of_rank[group[0]] == call_of_rank[rank]) {
        group.push_back(rank);
        known = true;
        break;
      }
    }
    if (!known) groups.push_back({rank});
  }
  return groups;
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string mismatch_message(std::span<const CollectiveCall> call_of_rank) {
  const std::vector<std::vector<int>> groups = ranks_by_call(call_of_rank);
  if (groups.size() <= 1) return {};
  std::string message = "ranks disagree: ";
  for (const std::vector<int>& group : groups) {
    message += (&group == &groups[0] ? "" : "; ") + rank_list(group) +
               (group.size() == 1 ? " calls " : " call ") + describe(call_of_rank[group[0]]);
  }
  for (std::size_t g = 1; g < groups.size(); ++g) {
    message += "; " + rank_list(groups[g]) + " against rank " + std::to_string(groups[0][0]) +
               ": " + difference(call_of_rank[groups[g][0]], call_of_rank[groups[0][0]]);
  }
  return message;
}

}  // namespace mladcp
