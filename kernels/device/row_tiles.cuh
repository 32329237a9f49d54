// The shape of every kernel that moves rows: a block takes a tile of rows, one thread a row works
// out what its row needs (addresses, weights), then all threads move chunks of the tile, loads
// before stores.
#pragma once

#include <cstdint>

#include "kernels/device/fast_divide.h"

namespace mladcp {

inline constexpr int kTileThreads = 256;
inline constexpr int kTileRows = 32;
inline constexpr int kTileBlocksPerSm = 5;
inline constexpr int kChunksInFlight = 3;  // a tile of 576-wide rows is 3 x 3 chunks a thread

// prepare(row) -> Row; load(row_state, chunk) -> value; store(row_state, chunk, value). kRows: of a
// tile; kTileThreads * kChunksInFlight should divide its chunks.
template <typename Row, int kRows = kTileRows, typename Prepare, typename Load, typename Store>
__device__ void for_each_chunk(std::int64_t rows, FastDivisor chunks_per_row,
                               const Prepare& prepare, const Load& load, const Store& store) {
  __shared__ Row tile[kRows];
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < rows;
       first += std::int64_t{gridDim.x} * kRows) {
    const auto count = static_cast<std::uint32_t>(rows - first < kRows ? rows - first : kRows);
    __syncthreads();
    if (threadIdx.x < count) tile[threadIdx.x] = prepare(first + threadIdx.x);
    __syncthreads();
    const std::uint32_t chunks = count * chunks_per_row.divisor();
    for (std::uint32_t base = threadIdx.x; base < chunks; base += kTileThreads * kChunksInFlight) {
      decltype(load(tile[0], 0U)) values[kChunksInFlight];
#pragma unroll
      for (int k = 0; k < kChunksInFlight; ++k) {
        const std::uint32_t item = base + k * kTileThreads;
        if (item >= chunks) continue;
        const std::uint32_t row = chunks_per_row.quotient(item);
        values[k] = load(tile[row], item - row * chunks_per_row.divisor());
      }
#pragma unroll
      for (int k = 0; k < kChunksInFlight; ++k) {
        const std::uint32_t item = base + k * kTileThreads;
        if (item >= chunks) continue;
        const std::uint32_t row = chunks_per_row.quotient(item);
        store(tile[row], item - row * chunks_per_row.divisor(), values[k]);
      }
    }
  }
}

}  // namespace mladcp
