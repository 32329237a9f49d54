// Rows that say what they are: every channel holds a base-16 digit, exact in e4m3 and bf16, so that
// a row found in a wrong place names the token it is.
#pragma once

#include <cstdint>
#include <string>

#include "core/kv_cache.h"
#include "core/tensor.h"
#include "harness/problem.h"
#include "harness/scenario.h"

namespace mladcp {

// Four digits of the owner, four of the request, eight of the position, over and over; latent and
// RoPE parts both begin with the first.
struct Tag {
  static constexpr std::int64_t kDigits = 16;

  std::int64_t owner = 0;  // of a cached token the rank that keeps it, of a query its head
  std::int64_t request = 0;
  std::int64_t position = 0;

  // Of channel c of a part.
  int digit(std::int64_t c) const;

  friend bool operator==(const Tag& a, const Tag& b) = default;
};

// The scenario with scales of 1, under which digits are codes.
Scenario tag_scenario(const Scenario& scenario);

// The step's requests with tagged tokens and queries, and projections that pass them on: W_UK and
// W_UV are ones on the diagonal of every head.
DecodeProblem tagged_problem(const Scenario& scenario);

// Tells what rows [.., D] on the host say they are.
class TagReader {
 public:
  // owner: what the tags' first digits count, "rank" or "head"; latent: so many channels of the
  // latent part carry digits.
  TagReader(const MlaDims& dims, std::string owner, std::int64_t latent)
      : dims_(dims), owner_(std::move(owner)), latent_(latent) {}

  // "rank 1 request 0 position 17", "no token" (NaN), "no tag", or both parts where they differ.
  // `row` counts all rows of the tensor.
  std::string operator()(const TensorView& rows, std::int64_t row) const;

 private:
  std::string part(const TensorView& rows, std::int64_t begin, std::int64_t count) const;

  MlaDims dims_;
  std::string owner_;
  std::int64_t latent_;
};

}  // namespace mladcp
