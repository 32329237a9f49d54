// The host side of a launch, as far as the Hopper decode kernels share it.
#pragma once

#include "kernels/decode/decode_params.h"
#include "kernels/device/dependent_launch.h"

namespace mladcp::sm90 {

// CTAs that walk a part side by side, a tile of `tile_rows` query rows each.
inline int row_tiles(const DecodeParams& p, int tile_rows) {
  return (p.max_rows_per_request * p.num_heads + tile_rows - 1) / tile_rows;
}

// log2 of the blocks of a page.
inline int page_shift(const DecodeParams& p) {
  int shift = 0;
  while ((kDecodeBlockKeys << shift) < p.page_size) ++shift;
  return shift;
}

// Enqueues `kernel` on the grid {row tiles, parts}: neighbours read the same pages at about the
// same time, so that all but the first find them in L2. Throws CudaError that names `what`.
template <class... Parameters, class... Arguments>
void launch_decode(const char* what, const DecodeParams& p, int tile_rows, int threads,
                   int shared_bytes, cudaStream_t stream, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      what);
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(row_tiles(p, tile_rows)), static_cast<unsigned>(p.num_parts));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  launch_dependent(what, config, kernel, arguments...);
}

}  // namespace mladcp::sm90
