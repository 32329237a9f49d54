// The packed exchange: a partial's row and the bits of its LSE in two more bf16 lanes, low half
// first.
#include "kernels/combine/combine_kernels.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/grid.h"
#include "kernels/device/row_access.h"
#include "kernels/device/row_tiles.cuh"
#include "kernels/device/vectors.cuh"

namespace mladcp {
namespace {

// Rows are (s, t, h), packed row width X + 2. Sizes and strides of one direction or the other.
struct PackedParams {
  std::uint16_t* packed;
  std::uint16_t* plain;
  std::uint32_t* lse;
  std::int64_t rows;  // N * T * H
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t packed_strides[3];  // of s, t, h
  std::int64_t plain_strides[3];
  std::int64_t lse_strides[3];
  std::uint32_t width;  // X
  FastDivisor chunks_per_row;
};

struct Row {
  std::uint16_t* packed;
  std::uint16_t* plain;
};

struct Place {
  std::int64_t packed;
  std::int64_t plain;
  std::int64_t lse;
};

__device__ Place place_of(const PackedParams& p, std::int64_t row) {
  const std::int64_t index[3] = {row / (p.tokens * p.heads), row / p.heads % p.tokens,
                                 row % p.heads};
  Place place = {0, 0, 0};
#pragma unroll
  for (int dim = 0; dim < 3; ++dim) {
    place.packed += index[dim] * p.packed_strides[dim];
    place.plain += index[dim] * p.plain_strides[dim];
    place.lse += index[dim] * p.lse_strides[dim];
  }
  return place;
}

// Rows of the packed tensor start at odd multiples of 4 bytes when X is 512: two lanes are the
// widest access.
template <int kN, bool kPack>
__global__ void __launch_bounds__(kTileThreads, kTileBlocksPerSm)
    packed_kernel(const __grid_constant__ PackedParams p) {
  for_each_chunk<Row>(
      p.rows, p.chunks_per_row,
      [&](std::int64_t row) {
        const Place place = place_of(p, row);
        std::uint16_t* packed = p.packed + place.packed;
        std::uint16_t* lanes = packed + p.width;
        if constexpr (kPack) {
          const std::uint32_t bits = p.lse[place.lse];
          lanes[0] = static_cast<std::uint16_t>(bits & 0xFFFFu);
          lanes[1] = static_cast<std::uint16_t>(bits >> 16);
        } else {
          p.lse[place.lse] = lanes[0] | (static_cast<std::uint32_t>(lanes[1]) << 16);
        }
        return Row{packed, p.plain + place.plain};
      },
      [](const Row& row, std::uint32_t chunk) {
        return load_vector<std::uint16_t, kN>((kPack ? row.plain : row.packed) + chunk * kN);
      },
      [](const Row& row, std::uint32_t chunk, const Vector<std::uint16_t, kN>& lanes) {
        store_vector((kPack ? row.packed : row.plain) + chunk * kN, lanes);
      });
}

// packed [N, T, H, X + 2], plain [N, T, H, X], lse [N, T, H], any strides before the last.
template <bool kPack>
void launch(const TensorView& packed, const TensorView& plain, const TensorView& lse,
            Stream stream) {
  if (lse.elements() == 0) return;
  PackedParams p = {};
  p.packed = packed.as<std::uint16_t>();
  p.plain = plain.as<std::uint16_t>();
  p.lse = lse.as<std::uint32_t>();
  p.rows = lse.elements();
  p.tokens = lse.shape[1];
  p.heads = lse.shape[2];
  for (int dim = 0; dim < 3; ++dim) {
    p.packed_strides[dim] = packed.strides[dim];
    p.plain_strides[dim] = plain.strides[dim];
    p.lse_strides[dim] = lse.strides[dim];
  }
  p.width = static_cast<std::uint32_t>(plain.shape[3]);
  const bool pairs = p.width % 2 == 0 && rows_allow_vectors({packed, plain}, 2);
  p.chunks_per_row = FastDivisor(pairs ? p.width / 2 : p.width);
  const unsigned blocks = grid_blocks(p.rows, kTileRows);
  const cudaStream_t cuda = cuda_stream(stream);
  if (pairs) {
    packed_kernel<2, kPack><<<blocks, kTileThreads, 0, cuda>>>(p);
  } else {
    packed_kernel<1, kPack><<<blocks, kTileThreads, 0, cuda>>>(p);
  }
  check_launch("packed_kernel");
}

}  // namespace

void launch_pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
                 Stream stream) {
  const std::int64_t ranks = packed.shape[0];
  launch<true>(packed, partial.split(1, ranks).transposed(0, 1),
               lse.split(1, ranks).transposed(0, 1), stream);
}

void launch_unpack(const TensorView& partials, const TensorView& lses, const TensorView& packed,
                   Stream stream) {
  launch<false>(packed, partials, lses, stream);
}

}  // namespace mladcp
