// Sizes, shared-memory map and register budget of the Hopper BF16 decode kernel: the roles, rings
// and softmax of the FP8 kernel around other products. docs/decode_kernel.md draws them.
#pragma once

#include "kernels/decode/sm90_fp8/config.h"

namespace mladcp::sm90_bf16 {

using sm90_fp8::kPageKeys;

inline constexpr int kTileChunk = 128;  // bytes of a row in one tile: 64 dims, one SW128 row
inline constexpr int kTiles = kDecodeQkDim * 2 / kTileChunk;  // of a page or of the query
inline constexpr int kTileBytes = kPageKeys * kTileChunk;
inline constexpr int kQkSteps = kDecodeQkDim / 16;
inline constexpr int kWarpgroupDims = kDecodeLatentRank / 2;  // of O, for each PV warpgroup

// One size: 64 query rows a CTA. Pages and query are [9][64 rows][128 B], swizzled by 128 bytes.
struct Config {
  static constexpr int kRows = 64;
  static constexpr sm90_fp8::PvFormat kPv = sm90_fp8::PvFormat::kBF16;
  static constexpr bool kPv16Bit = true;
  static constexpr bool kF16Partials = false;  // bf16 values may pass the range of f16
  static constexpr int kSoftmaxWarps = 4;

  static constexpr float kOffset = 5.0F;
  static constexpr float kTau = 8.0F;

  static constexpr int kQueryRegisterSteps = 16;
  static constexpr int kSoftmaxRegisters = 152;
  static constexpr int kPvRegisters = 160;
  static constexpr int kProducerRegisters = 40;
  static_assert(kSoftmaxRegisters + 2 * kPvRegisters + kProducerRegisters <= 512);

  static constexpr int kStages = 2;
  static constexpr int kStageBytes = kTiles * kTileBytes;
  static constexpr int kPrefetchPages = 1;
  static constexpr int kPagesInFlight = kStages;
  static constexpr int kProbSlotBits = 0;  // one buffer of P
  static constexpr int kProbBytes = kRows * kPageKeys * 2;

  // Offsets from a 1,024-byte aligned base.
  static constexpr int kQueryOffset = kStages * kStageBytes;
  static constexpr int kProbOffset = kQueryOffset + kTiles * kRows * kTileChunk;
  static constexpr int kRescaledOffset = kProbOffset + kProbBytes;
  static constexpr int kAlphaOffset = kRescaledOffset + 32;
  static constexpr int kRowScaleOffset = kAlphaOffset + 2 * 4 * sm90_fp8::kAlphaStride * 4;
  static constexpr int kRowTargetOffset = kRowScaleOffset + kRows * 4;
  static constexpr int kPieceOffset = kRowTargetOffset + kRows * 8;
  static constexpr int kBarrierOffset = kPieceOffset + sm90_fp8::kPieceSlots * 32;
  static constexpr int kNumBarriers = 2 * kStages + 4 + 2 + 2 * sm90_fp8::kPieceSlots + 2;
  static constexpr int kSharedBytes = kBarrierOffset + kNumBarriers * 8;
  static_assert(kQueryOffset % 1024 == 0 && kProbOffset % 1024 == 0);
  static_assert(kSharedBytes <= 232448, "a Hopper CTA has 227 KiB");
};

}  // namespace mladcp::sm90_bf16
