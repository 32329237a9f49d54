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
// Where one row comes from and goes to; out null: nowhere.
template <typename Out>
struct JoinedRow {
  const __nv_bfloat16* latent;
  const __nv_bfloat16* rope;
  Out* out;
};

// Chunks of one value take any scale, wider ones a moderate one.
template <int kN>
using JoinQuotient = std::conditional_t<kN == 1, DivisionByScale, QuotientByScale>;

template <int kN, typename Out>
__device__ Vector<__nv_bfloat16, kN> load_joined(const JoinedRow<Out>& row, std::uint32_t chunk,
                                                 std::uint32_t latent_chunks) {
  const __nv_bfloat16* source =
      chunk < latent_chunks ? row.latent + chunk * kN : row.rope + (chunk - latent_chunks) * kN;
  Vector<__nv_bfloat16, kN> values{};
  if (row.out != nullptr) values = load_vector<__nv_bfloat16, kN>(source);
  return values;
}

template <int kN, typename Out>
__device__ void store_joined(const JoinedRow<Out>& row, std::uint32_t chunk,
                             const Vector<__nv_bfloat16, kN>& values,
                             const JoinQuotient<kN>& quotient) {
  if (row.out == nullptr) return;
  if constexpr (std::is_same_v<Out, E4M3Code>) {
    store_vector(row.out + chunk * kN, quantize_vector(values, quotient));
  } else {
    store_vector(row.out + chunk * kN, values);
  }
}

// chunks_per_row = (L + R) / kN; address(row) -> JoinedRow. Out is bf16 or E4M3Code.
template <typename Out, int kN, typename Address>
__device__ void join_rows(std::int64_t rows, FastDivisor chunks_per_row,
                          std::uint32_t latent_chunks, float scale, const Address& address) {
  const JoinQuotient<kN> quotient(scale);
  for_each_chunk<JoinedRow<Out>, kJoinTileRows<kN>>(
      rows, chunks_per_row, address,
      [&](const JoinedRow<Out>& row, std::uint32_t chunk) {
        return load_joined<kN>(row, chunk, latent_chunks);
      },
      [&](const JoinedRow<Out>& row, std::uint32_t chunk, const Vector<__nv_bfloat16, kN>& values) {
        store_joined<kN>(row, chunk, values, quotient);
      });
}

}  // namespace mladcp
