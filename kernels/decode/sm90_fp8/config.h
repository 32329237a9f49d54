// Sizes, shared-memory map and register budget of the Hopper FP8 decode kernel.
// docs/decode_kernel.md draws them.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_params.h"

namespace mladcp::sm90_fp8 {

// How P (the softmax weights) enters the second product: e4m3 or f16 (both promoted to fp32 once a
// page), or bf16 with O accumulated in place (a 16-bit wgmma keeps 24 bits).
enum class PvFormat { kE4M3, kF16, kBF16 };

inline constexpr int kPageKeys = kDecodeBlockKeys;
inline constexpr int kRopeOffset = kDecodeLatentRank;  // bytes, as e4m3 is one byte
inline constexpr int kLatentChunk = 128;               // one SW128 row
inline constexpr int kLatentChunks = kDecodeLatentRank / kLatentChunk;
inline constexpr int kPageBytes = kPageKeys * kDecodeQkDim;
inline constexpr int kRopeTileOffset = kPageKeys * kDecodeLatentRank;  // inside a stage
inline constexpr int kQkSteps = kDecodeQkDim / 32;

inline constexpr int kThreads = 512;
inline constexpr int kPvWarps = 8;
inline constexpr int kQueryWarps = 3;  // warps 1..3 of the producer warpgroup
inline constexpr int kPieceSlots = 4;
inline constexpr int kAlphaStride = 20;  // floats; keeps the four readers of a warp off each other

// A run of pages of one request, for one tile of query rows. The producer writes them, all roles
// walk them in order.
struct Piece {
  std::int32_t num_pages;  // -1: no further piece
  std::int32_t num_keys;   // keys from the first page on that any row of the request may see
  std::int32_t first_key;  // local index of the first page's first key
  std::int32_t row_begin;  // first query row of the request
  std::int32_t num_rows;   // rows of this tile that exist
  std::int32_t split;      // index into the partials, -1: write the result itself
  std::int32_t unused[2];
};
static_assert(sizeof(Piece) == 32, "read as two 16-byte words");

// kTileRows query rows (heads x query tokens) a CTA: 16, 32 or 64.
template <int kTileRows>
struct Config {
  static_assert(kTileRows == 16 || kTileRows == 32 || kTileRows == 64);
  static constexpr int kRows = kTileRows;
  static constexpr PvFormat kPv = kRows == 64 ? PvFormat::kE4M3 : PvFormat::kF16;
  static constexpr bool kPvF16 = kPv == PvFormat::kF16;
  static constexpr bool kPv16Bit = kPvF16;
  static constexpr bool kPageAtOnce = kRows == 16;  // PV warps hold the fragments of a page
  static constexpr bool kF16Partials = true;
  static constexpr int kStageBytes = kPageBytes;
  static constexpr int kStages = 5;
  static constexpr int kStagesInFlight = 2;      // of one CTA
  static constexpr int kStagesInFlightLate = 3;  // of one that is late, see Pace
  static constexpr int kSoftmaxWarps = kRows / 16;
  static constexpr int kClusterTiles = 1;  // row tiles whose CTAs are a cluster
  // Warps that let go of a stage.
  static constexpr int stage_readers(int) { return kPvWarps; }

  // Weights are 2^offset at a row's reference maximum. The reference follows the maximum only when
  // that grew by more than kTau bits, so weights reach 2^(offset + tau): below 448 for e4m3.
  static constexpr float kOffset = kPvF16 ? 5.0F : 7.0F;
  static constexpr float kTau = kPvF16 ? 8.0F : 1.75F;

  // Registers of the query: 18 steps of 4 where they fit, else the last four steps stay in shared
  // memory.
  static constexpr int kQueryRegisterSteps = kRows == 64 ? 14 : kQkSteps;
  static constexpr int kSoftmaxRegisters = kQueryRegisterSteps == kQkSteps ? 168 : 120;
  static constexpr int kPvRegisters = kQueryRegisterSteps == kQkSteps ? 152 : 184;
  static constexpr int kProducerRegisters = kQueryRegisterSteps == kQkSteps ? 40 : 24;
  static_assert(kSoftmaxRegisters + 2 * kPvRegisters + kProducerRegisters <= 512);

  static constexpr int kProbBytes = kRows * kPageKeys * (kPvF16 ? 2 : 1);
  static constexpr int kQueryRopeTile = kRows * kDecodeLatentRank;  // inside the query buffer

  // Offsets from a 1,024-byte aligned base.
  static constexpr int kQueryOffset = kStages * kPageBytes;
  static constexpr int kProbOffset = kQueryOffset + kRows * kDecodeQkDim;
  static constexpr int kRescaledOffset = kProbOffset + 2 * kProbBytes;  // int32 [2][4]
  static constexpr int kAlphaOffset = kRescaledOffset + 32;             // float [2][4][stride]
  static constexpr int kRowScaleOffset = kAlphaOffset + 2 * 4 * kAlphaStride * 4;  // float [64]
  static constexpr int kRowTargetOffset = kRowScaleOffset + 64 * 4;                // int64 [64]
  static constexpr int kPieceOffset = kRowTargetOffset + 64 * 8;
  static constexpr int kBarrierOffset = kPieceOffset + kPieceSlots * 32;
  static constexpr int kNumBarriers = 2 * kStages + 4 + 2 + 2 * kPieceSlots + 2;
  static constexpr int kSharedBytes = kBarrierOffset + kNumBarriers * 8;
  static_assert(kQueryOffset % 1024 == 0 && kProbOffset % 1024 == 0 && kRescaledOffset % 16 == 0);
  static_assert(kSharedBytes <= 232448, "a Hopper CTA has 227 KiB");
};

}  // namespace mladcp::sm90_fp8
