#include "kernels/decode/generic_decode.cuh"

#include <string>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

template <DType kCache>
constexpr int shared_bytes(int stages) {
  using Layout = generic_decode::SharedLayout<kCache>;
  return Layout::kStages + stages * Layout::kStageBytes;
}

template <DType kQuery, DType kCache>
void launch(const DecodeParams& p, int max_shared_bytes, cudaStream_t stream) {
  const int stages = shared_bytes<kCache>(2) <= max_shared_bytes ? 2 : 1;
  const int bytes = shared_bytes<kCache>(stages);
  if (bytes > max_shared_bytes) {
    throw Unsupported("generic decode: a block needs " + std::to_string(bytes) +
                      " bytes of shared memory, this card offers " +
                      std::to_string(max_shared_bytes) +
                      "; use a card of the sm_80 or sm_90 class");
  }
  const auto kernel = generic_decode::generic_decode_kernel<kQuery, kCache>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute (generic_decode_kernel)");
  const int rows = p.max_rows_per_request * p.num_heads;
  const dim3 grid((rows + generic_decode::kRows - 1) / generic_decode::kRows, p.num_parts);
  kernel<<<grid, generic_decode::kThreads, bytes, stream>>>(p, stages);
  check_launch("generic_decode_kernel");
}

}  // namespace

int generic_decode_shared_bytes(DType cache_dtype, int stages) {
  return cache_dtype == DType::kE4M3 ? shared_bytes<DType::kE4M3>(stages)
                                     : shared_bytes<DType::kBF16>(stages);
}

void launch_generic_decode(const DecodeParams& p, int max_shared_bytes, Stream stream) {
  using enum DType;
  const cudaStream_t cuda = cuda_stream(stream);
  if (p.f16_partials) throw InvalidArgument("generic decode writes fp32 partials");
  if (p.query_dtype == kBF16 && p.cache_dtype == kBF16)
    return launch<kBF16, kBF16>(p, max_shared_bytes, cuda);
  if (p.query_dtype == kE4M3 && p.cache_dtype == kE4M3)
    return launch<kE4M3, kE4M3>(p, max_shared_bytes, cuda);
  if (p.query_dtype == kBF16 && p.cache_dtype == kE4M3)
    return launch<kBF16, kE4M3>(p, max_shared_bytes, cuda);
  throw Unsupported("generic decode: a " + std::string(name(p.query_dtype)) + " query over a " +
                    std::string(name(p.cache_dtype)) +
                    " cache; use (bf16, bf16), (e4m3, e4m3) or (bf16, e4m3)");
}

}  // namespace mladcp
