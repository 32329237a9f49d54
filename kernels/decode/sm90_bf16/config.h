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
inline constexpr int kTileSteps = 4;  // of S, 16 dims each
inline constexpr int kQkSteps = kTiles * kTileSteps;
inline constexpr int kWarpgroupDims = kDecodeLatentRank / 2;  // of O, for each PV warpgroup

// A page arrives and leaves in three pieces: its rope tile, and two halves of its latent tiles, of
// which each PV warpgroup has two neighbours in each half: tiles 0 1 4 5, then 2 3 6 7.
inline constexpr int kHalfTiles = 4;
inline constexpr int kRopeSlots = 2;
// Tile `i` of half `half`.
constexpr int latent_tile(int half, int i) { return 2 * half + i % 2 + 4 * (i / 2); }

// The query's first tiles live in registers, the others in shared memory.
inline constexpr int kQueryRegisterTiles = 4;
inline constexpr int kQueryTiles = kTiles - kQueryRegisterTiles;

// One size: 64 query rows a CTA. All tiles are [64 rows][128 B], swizzled by 128 bytes.
struct Config {
  static constexpr int kRows = 64;
  static constexpr sm90_fp8::PvFormat kPv = sm90_fp8::PvFormat::kBF16;
  static constexpr bool kPv16Bit = true;
  static constexpr bool kF16Partials = false;  // bf16 values may pass the range of f16
  static constexpr int kSoftmaxWarps = 4;

  static constexpr float kOffset = 5.0F;
  static constexpr float kTau = 8.0F;

  static constexpr int kSoftmaxRegisters = 160;
  static constexpr int kPvRegisters = 160;
  static constexpr int kProducerRegisters = 32;
  static_assert(kSoftmaxRegisters + 2 * kPvRegisters + kProducerRegisters <= 512);

  static constexpr int kStages = 5;  // halves of a page
  static constexpr int kStagesInFlight = 3;
  static constexpr int kStageBytes = kHalfTiles * kTileBytes;
  static constexpr int kProbBytes = kRows * kPageKeys * 2;

  // Offsets from a 1,024-byte aligned base.
  static constexpr int kRopeOffset = kStages * kStageBytes;
  static constexpr int kQueryOffset = kRopeOffset + kRopeSlots * kTileBytes;
  static constexpr int kProbOffset = kQueryOffset + kQueryTiles * kRows * kTileChunk;
  static constexpr int kRescaledOffset = kProbOffset + kProbBytes;
  static constexpr int kAlphaOffset = kRescaledOffset + 32;
  static constexpr int kRowScaleOffset = kAlphaOffset + 2 * 4 * sm90_fp8::kAlphaStride * 4;
  static constexpr int kRowTargetOffset = kRowScaleOffset + kRows * 4;
  static constexpr int kPieceOffset = kRowTargetOffset + kRows * 8;
  static constexpr int kBarrierOffset = kPieceOffset + sm90_fp8::kPieceSlots * 32;
  static constexpr int kRopeBarriers = 2 * kStages + 4 + 2 + 2 * sm90_fp8::kPieceSlots + 2;
  static constexpr int kNumBarriers = kRopeBarriers + 2 * kRopeSlots;
  static constexpr int kSharedBytes = kBarrierOffset + kNumBarriers * 8;
  static_assert(kQueryOffset % 1024 == 0 && kProbOffset % 1024 == 0);
  static_assert(kSharedBytes <= 232448, "a Hopper CTA has 227 KiB");
};

}  // namespace mladcp::sm90_bf16
