// Sizes, shared-memory map and register budget of the Hopper BF16 decode kernel: the roles and the
// softmax of the FP8 kernel around other products. docs/decode_kernel.md draws them.
#pragma once

#include "kernels/decode/sm90_fp8/config.h"

namespace mladcp::sm90_bf16 {

using sm90_fp8::kPageKeys;

inline constexpr int kTileChunk = 128;  // bytes of a row in one tile: 64 dims, one SW128 row
inline constexpr int kTileDims = kTileChunk / 2;
inline constexpr int kTiles = kDecodeQkDim / kTileDims;  // of a page or of the query
inline constexpr int kTileBytes = kPageKeys * kTileChunk;
inline constexpr int kRopeTile = kDecodeLatentRank / kTileDims;
inline constexpr int kTileSteps = 4;                          // of S, 16 dims each
inline constexpr int kWarpgroupDims = kDecodeLatentRank / 2;  // of O, for each PV warpgroup
inline constexpr int kTileRows = 64;                          // of the query a CTA
inline constexpr int kScoreWarps = 4;

// A page arrives in three pieces: two halves of its latent tiles, and its rope tile.
inline constexpr int kHalves = 2;
inline constexpr int kHalfTiles = 4;

// Some of the query's tiles live in registers, the others in shared memory.
inline constexpr int kQueryRegisterTiles = 4;
inline constexpr int kQueryTiles = kTiles - kQueryRegisterTiles;

// Factors of 16 rows, for the partner as well: float [16], whether any is not 1, padding.
inline constexpr int kRecordBytes = 80;
inline constexpr int kRecordFlag = 64;

// 64 query rows a CTA, alone or one of a pair. All tiles are [64 rows][128 B], swizzled by 128
// bytes.
//
// A CTA alone multiplies P V for its own rows. A pair are the CTAs of two neighbouring tiles of
// rows that walk the same part: they trade P, and each multiplies P V for the rows of both, but
// only its 256 dims. The half of a page that holds the other dims leaves as soon as S is there. So
// there is room for more pages, and P V of a page can wait until S of the next has been computed,
// and run under its softmax.
template <bool kIsPair>
struct Config {
  static constexpr bool kPair = kIsPair;
  static constexpr int kClusterTiles = kPair ? 2 : 1;

  // S takes the tiles of a page in nine places: the first half in 0..3, then the rope and the
  // second half. The rope of a pair comes last, because its one buffer is free the latest.
  static constexpr int kSecondPlace = kPair ? 4 : 5;
  static constexpr int kRopePlace = kPair ? 8 : 4;
  // Alone each PV warpgroup has two neighbours in each half: tiles 0 1 4 5, then 2 3 6 7.
  static constexpr int latent_tile(int half, int i) {
    return kPair ? kHalfTiles * half + i : 2 * half + i % 2 + 4 * (i / 2);
  }
  static constexpr int tile_at(int place) {
    return place == kRopePlace    ? kRopeTile
           : place < kSecondPlace ? latent_tile(0, place)
                                  : latent_tile(1, place - kSecondPlace);
  }
  // Steps with the query in registers are those beside which P goes to shared memory: others leave
  // its port to nobody.
  static constexpr int kFirstRegisterTile = kPair ? kQueryTiles : 0;
  static constexpr int kFirstSharedTile = kPair ? 0 : kQueryRegisterTiles;
  static constexpr int kPublishPlace = kPair ? 8 : 2;  // what is left of P goes out before it

  static constexpr int kRows = kTileRows;
  static constexpr sm90_fp8::PvFormat kPv = sm90_fp8::PvFormat::kBF16;
  static constexpr bool kPv16Bit = true;
  static constexpr bool kF16Partials = false;  // bf16 values may pass the range of f16
  static constexpr int kSoftmaxWarps = kScoreWarps;

  static constexpr float kOffset = 5.0F;
  static constexpr float kTau = 8.0F;

  static constexpr int kSoftmaxRegisters = 160;
  static constexpr int kPvRegisters = 160;
  static constexpr int kProducerRegisters = 32;
  static_assert(kSoftmaxRegisters + 2 * kPvRegisters + kProducerRegisters <= 512);

  // Halves of a page. Those of a pair that leave with S have a ring of their own, behind.
  static constexpr int kStages = 5;
  static constexpr int kKeptStages = kPair ? 3 : kStages;
  static constexpr int stage_readers(int stage) {
    return stage < kKeptStages ? sm90_fp8::kPvWarps : kScoreWarps;
  }
  static constexpr int kStagesInFlight = 3;
  static constexpr int kStageBytes = kHalfTiles * kTileBytes;
  static constexpr int kRopeSlots = kPair ? 1 : 2;
  static constexpr int kProbSlots = kPair ? 2 : 1;  // this CTA's tile, its partner's
  static constexpr int kProbBytes = kRows * kPageKeys * 2;

  // Offsets from a 1,024-byte aligned base.
  static constexpr int kRopeOffset = kStages * kStageBytes;
  static constexpr int kQueryOffset = kRopeOffset + kRopeSlots * kTileBytes;
  static constexpr int kProbOffset = kQueryOffset + kQueryTiles * kRows * kTileChunk;
  static constexpr int kRescaledOffset = kProbOffset + kProbSlots * kProbBytes;
  static constexpr int kAlphaOffset = kRescaledOffset + 32;  // of a pair: records [2][4]
  static constexpr int kRowScaleOffset = kAlphaOffset + 2 * 4 * sm90_fp8::kAlphaStride * 4;
  static constexpr int kRowTargetOffset = kRowScaleOffset + kRows * 4;
  static constexpr int kSumsBytes = kRows * (4 + 8);  // scales and targets of a tile's rows
  static constexpr int kPieceOffset = kRowScaleOffset + kProbSlots * kSumsBytes;
  static constexpr int kBarrierOffset = kPieceOffset + sm90_fp8::kPieceSlots * 32;
  static constexpr int kRopeBarriers = 2 * kStages + 4 + 2 + 2 * sm90_fp8::kPieceSlots + 2;
  static constexpr int kPartnerSums = kRopeBarriers + 2 * kRopeSlots;
  static constexpr int kNumBarriers = kPartnerSums + (kPair ? 1 : 0);
  static constexpr int kSharedBytes = kBarrierOffset + kNumBarriers * 8;
  static_assert(kQueryOffset % 1024 == 0 && kProbOffset % 1024 == 0);
  static_assert(kAlphaOffset % 16 == 0 && 4 * sm90_fp8::kAlphaStride * 4 == 4 * kRecordBytes);
  static_assert(kSharedBytes <= 232448, "a Hopper CTA has 227 KiB");
};

}  // namespace mladcp::sm90_bf16
