// A CollectiveCall as bytes that travel between processes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "core/collective.h"

namespace mladcp {

// Trivially copyable, without padding, so that equal calls are equal bytes. Stage names beyond
// kStageBytes are cut.
struct Fingerprint {
  static constexpr int kStageBytes = 48;

  std::int64_t sequence = 0;
  std::int64_t in_shape[Extents::kMaxRank] = {};
  std::int64_t out_shape[Extents::kMaxRank] = {};
  std::int32_t in_rank = 0;
  std::int32_t out_rank = 0;
  std::int32_t dim = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t stage_bytes = 0;
  std::uint8_t unused = 0;
  char stage[kStageBytes] = {};

  static Fingerprint of(const CollectiveCall& call);
  // The stage of the result views this fingerprint. Contents of a strange process are clamped to
  // what a CollectiveCall can hold.
  CollectiveCall call() const;
};

static_assert(std::is_trivially_copyable_v<Fingerprint>);
static_assert(std::has_unique_object_representations_v<Fingerprint>);

// collectives/mismatch.h on what arrived: empty when all are equal.
std::string mismatch_message(std::span<const Fingerprint> fingerprint_of_rank);

}  // namespace mladcp
