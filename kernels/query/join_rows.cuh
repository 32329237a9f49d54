// Rows made of a latent and a RoPE part: what concatenating a query and writing the cache have in
// common.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/device/e4m3.cuh"
#include "kernels/device/row_tiles.cuh"
#include "kernels/device/vectors.cuh"

namespace mladcp {

// Chunks of 8 bf16 are 16-byte loads; of 16, two of them and, as codes, one 16-byte store.
// They keep twice the bytes in flight a thread, in more registers.
template <int kN>
inline constexpr int kJoinTileRows = kN == 16 ? 2 * kTileRows : kTileRows;
template <int kN>
inline constexpr int kJoinBlocksPerSm = kN == 16 ? 4 : kTileBlocksPerSm;
// Of a step with few rows, which would leave most multiprocessors without a tile.
inline constexpr int kFewJoinTileRows = 4;

// Where one row comes from and goes to; out null: nowhere.
template <typename Out>
struct JoinedRow {
  const __nv_bfloat16* latent;
  const __nv_bfloat16* rope;
  Out* out;
};

// chunks_per_row = (L + R) / kN; address(row) -> JoinedRow. Out is bf16 or E4M3Code. Chunks of one
// value take any scale, wider ones a moderate one.
template <typename Out, int kN, int kRows = kJoinTileRows<kN>, typename Address>
__device__ void join_rows(std::int64_t rows, FastDivisor chunks_per_row,
                          std::uint32_t latent_chunks, float scale, const Address& address) {
  using Row = JoinedRow<Out>;
  using Quotient = std::conditional_t<kN == 1, DivisionByScale, QuotientByScale>;
  const Quotient quotient(scale);
  for_each_chunk<Row, kRows>(
      rows, chunks_per_row, address,
      [&](const Row& row, std::uint32_t chunk) {
        const __nv_bfloat16* source = chunk < latent_chunks
                                          ? row.latent + chunk * kN
                                          : row.rope + (chunk - latent_chunks) * kN;
        Vector<__nv_bfloat16, kN> values{};
        if (row.out != nullptr) values = load_vector<__nv_bfloat16, kN>(source);
        return values;
      },
      [&](const Row& row, std::uint32_t chunk, const Vector<__nv_bfloat16, kN>& values) {
        if (row.out == nullptr) return;
        if constexpr (std::is_same_v<Out, E4M3Code>) {
          store_vector(row.out + chunk * kN, quantize_vector(values, quotient));
        } else {
          store_vector(row.out + chunk * kN, values);
        }
      });
}

}  // namespace mladcp
