// The placement laws of core/collective.h, carried out by the receiving rank once it can read the
// input of every rank.
#pragma once

#include <span>
#include <vector>

#include "core/collective.h"

namespace mladcp {

class Placement {
 public:
  Placement(int rank, int world_size);

  // Writes `out` from inputs[s], the input of rank s, on out's device. Sums run in rank order, in
  // fp32, each element rounded once: bitwise repeatable. Allocates nothing of its own.
  void apply(const CollectiveCall& call, const TensorView& out, std::span<const TensorView> inputs,
             Stream stream);

 private:
  int rank_;
  std::vector<TensorView> addends_;  // the slices of one reduction
};

}  // namespace mladcp
