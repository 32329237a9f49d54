// One CTA: 64 rows of one head of one request, four warps of 16 rows; blocks of 64 keys, double
// buffered. Scores, the online softmax and the output stay in a warp's registers; the accumulators
// of Q K^T are the fragments of P V.
#include <algorithm>

#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/tensor_core.cuh"
#include "kernels/prefill/prefill_attention.h"

namespace mladcp {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kKeys = 64;
constexpr int kQkChunks = kPrefillQkDim / 8;  // of 16 bytes in a row
constexpr int kValueChunks = kPrefillValueDim / 8;
constexpr int kQueryBytes = kRows * kPrefillQkDim * 2;
constexpr int kKeyBytes = kKeys * kPrefillQkDim * 2;
constexpr int kValueBytes = kKeys * kPrefillValueDim * 2;
constexpr int kStageBytes = kKeyBytes + kValueBytes;
constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
constexpr int kKeyTiles = kKeys / 8;
constexpr int kValueTiles = kPrefillValueDim / 8;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// Rows are multiples of 128 bytes: the chunk is swizzled by the row.
template <int kChunks>
__device__ std::uint32_t chunk_address(std::uint32_t base, int row, int chunk) {
  return base + row * (kChunks * 16) + ((chunk ^ (row & 7)) << 4);
}

// Rows first .. first + 63 of one head; rows at or beyond `end` become zeros.
template <int kChunks>
__device__ void start_tile(std::uint32_t base, const __nv_bfloat16* source, std::int64_t stride,
                           int first, int end) {
#pragma unroll
  for (int i = 0; i < 64 * kChunks / kThreads; ++i) {
    const int item = threadIdx.x + i * kThreads;
    const int row = item / kChunks;
    const int chunk = item % kChunks;
    const bool valid = first + row < end;
    copy_async_16(chunk_address<kChunks>(base, row, chunk),
                  valid ? source + (first + row) * stride + chunk * 8 : source, valid);
  }
}

struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};  // of rows g and g + 8, in units of log2
  float sum[2] = {0.0F, 0.0F};                // this lane's keys
};

// Masks s, turns it into probabilities, rescales `out`. `visible` counts keys of the block that
// rows g, g + 8 may see.
__device__ void update(Softmax& state, float (&s)[kKeyTiles][4], float (&out)[kValueTiles][4],
                       const int (&visible)[2], float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = state.maximum[half];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * half + i];
        x = 8 * n + 2 * (lane % 4) + i < visible[half] ? x * scale : -INFINITY;
        largest = fmaxf(largest, x);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    const bool any = largest != -INFINITY;
    const float alpha = any ? fast_exp2(state.maximum[half] - largest) : 1.0F;
    const float shift = any ? largest : 0.0F;
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * half + i];
        x = fast_exp2(x - shift);
        sum += x;
      }
    }
    state.sum[half] = state.sum[half] * alpha + sum;
    state.maximum[half] = largest;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      out[n][2 * half] *= alpha;
      out[n][2 * half + 1] *= alpha;
    }
  }
}

template <bool kCausal>
__device__ void attend_tile(const PrefillParams& p, std::int64_t request, std::uint32_t shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t head = blockIdx.y;
  const std::int64_t first_row = p.cu_rows[request];
  const int rows = static_cast<int>(p.cu_rows[request + 1] - first_row);
  const int tile = blockIdx.x * kRows;
  if (tile >= rows) return;
  const std::int64_t first_key = p.cu_keys[request];
  const int request_keys = static_cast<int>(p.cu_keys[request + 1] - first_key);
  const int keys = kCausal ? min(request_keys, tile + kRows) : request_keys;

  const auto* query = static_cast<const __nv_bfloat16*>(p.query) + first_row * p.query_strides[0] +
                      head * p.query_strides[1];
  const auto* key = static_cast<const __nv_bfloat16*>(p.key) + first_key * p.key_strides[0] +
                    head * p.key_strides[1];
  const auto* value = static_cast<const __nv_bfloat16*>(p.value) + first_key * p.value_strides[0] +
                      head * p.value_strides[1];
  const auto start_block = [&](int block) {
    const std::uint32_t stage = shared + kQueryBytes + (block & 1) * kStageBytes;
    start_tile<kQkChunks>(stage, key, p.key_strides[0], block * kKeys, keys);
    start_tile<kValueChunks>(stage + kKeyBytes, value, p.value_strides[0], block * kKeys, keys);
    commit_copies();
  };

  const int blocks = (keys + kKeys - 1) / kKeys;
  start_tile<kQkChunks>(shared, query, p.query_strides[0], tile, rows);
  if (blocks > 0) {
    start_block(0);
  } else {
    commit_copies();
  }

  Softmax state;
  float out[kValueTiles][4] = {};
  std::uint32_t a[kPrefillQkDim / 16][4];
  const int upper = tile + 16 * warp + lane / 4;  // row of the request; the other is upper + 8
  for (int block = 0; block < blocks; ++block) {
    wait_for_copies<0>();
    __syncthreads();  // the block has arrived, and everyone is done with the one before
    if (block == 0) {
#pragma unroll
      for (int step = 0; step < kPrefillQkDim / 16; ++step) {
        load_matrices(a[step], chunk_address<kQkChunks>(shared, 16 * warp + (lane & 15),
                                                        2 * step + (lane >> 4)));
      }
    }
    if (block + 1 < blocks) start_block(block + 1);
    const std::uint32_t key_base = shared + kQueryBytes + (block & 1) * kStageBytes;
    const std::uint32_t value_base = key_base + kKeyBytes;

    float s[kKeyTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kPrefillQkDim / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        std::uint32_t b[4];
        load_matrices(b,
                      chunk_address<kQkChunks>(key_base, 16 * pair + (lane >> 4) * 8 + (lane & 7),
                                               2 * step + ((lane >> 3) & 1)));
        multiply_add<__nv_bfloat16>(s[2 * pair], a[step], b[0], b[1]);
        multiply_add<__nv_bfloat16>(s[2 * pair + 1], a[step], b[2], b[3]);
      }
    }
    const int left = keys - block * kKeys;
    const int visible[2] = {kCausal ? min(left, upper + 1 - block * kKeys) : left,
                            kCausal ? min(left, upper + 9 - block * kKeys) : left};
    update(state, s, out, visible, p.softmax_scale * kLog2E);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const std::uint32_t probabilities[4] = {
          pack_pair<__nv_bfloat16>(s[2 * step][0], s[2 * step][1]),
          pack_pair<__nv_bfloat16>(s[2 * step][2], s[2 * step][3]),
          pack_pair<__nv_bfloat16>(s[2 * step + 1][0], s[2 * step + 1][1]),
          pack_pair<__nv_bfloat16>(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
      for (int pair = 0; pair < kValueTiles / 2; ++pair) {
        std::uint32_t b[4];
        load_matrices_transposed(b, chunk_address<kValueChunks>(
                                        value_base, 16 * step + ((lane >> 3) & 1) * 8 + (lane & 7),
                                        2 * pair + (lane >> 4)));
        multiply_add<__nv_bfloat16>(out[2 * pair], probabilities, b[0], b[1]);
        multiply_add<__nv_bfloat16>(out[2 * pair + 1], probabilities, b[2], b[3]);
      }
    }
  }
  wait_for_copies<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half] + __shfl_xor_sync(0xFFFFFFFFu, state.sum[half], 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const int row = upper + 8 * half;
    if (row >= rows) continue;
    const bool empty = sum == 0.0F;
    const float factor = empty ? 0.0F : 1.0F / sum;
    float* to = p.out + (first_row + row) * p.out_strides[0] + head * p.out_strides[1];
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      const float x = empty ? 0.0F : out[n][2 * half] * factor;
      const float y = empty ? 0.0F : out[n][2 * half + 1] * factor;
      *reinterpret_cast<float2*>(to + 8 * n + 2 * (lane % 4)) = make_float2(x, y);
    }
    if (lane % 4 == 0) {
      p.lse[(first_row + row) * p.lse_strides[0] + head * p.lse_strides[1]] =
          empty ? -INFINITY : state.maximum[half] * kLn2 + logf(sum);
    }
  }
}

template <bool kCausal>
__global__ void __launch_bounds__(kThreads)
    prefill_attention_kernel(const __grid_constant__ PrefillParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  for (std::int64_t request = blockIdx.z; request < p.requests; request += gridDim.z) {
    __syncthreads();  // the former request is done with shared memory
    attend_tile<kCausal>(p, request, shared_address(shared));
  }
}

template <bool kCausal>
void launch(const PrefillParams& p, cudaStream_t stream) {
  const auto kernel = prefill_attention_kernel<kCausal>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute (prefill_attention_kernel)");
  const dim3 grid(static_cast<unsigned>((p.max_rows + kRows - 1) / kRows),
                  static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(std::min<std::int64_t>(p.requests, 65535)));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(p);
  check_launch("prefill_attention_kernel");
}

}  // namespace

void launch_prefill_attention(const PrefillParams& p, bool causal, Stream stream) {
  if (p.requests == 0 || p.max_rows == 0 || p.heads == 0) return;
  causal ? launch<true>(p, cuda_stream(stream)) : launch<false>(p, cuda_stream(stream));
}

}  // namespace mladcp
