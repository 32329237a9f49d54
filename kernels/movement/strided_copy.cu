#include <string>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/fast_divide.h"
#include "kernels/device/grid.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/movement/strided_views.h"

namespace mladcp {
namespace {

constexpr int kThreads = 256;
constexpr int kWordsPerThread = 4;  // loads in flight before the first store
constexpr std::int64_t kMostWords = std::int64_t{1} << 30;  // of one launch: indices are 32-bit

// Extents and strides in words, the last dim first.
struct StridedCopyParams {
  void* destination;
  const void* source;
  std::uint32_t words;
  int rank;
  FastDivisor extents[Extents::kMaxRank];
  std::int64_t destination_strides[Extents::kMaxRank];
  std::int64_t source_strides[Extents::kMaxRank];
};

struct Offsets {
  std::int64_t destination;
  std::int64_t source;
};

__device__ Offsets offsets_of(const StridedCopyParams& p, std::uint32_t index) {
  Offsets at = {0, 0};
  for (int dim = 0; dim < p.rank; ++dim) {
    const std::uint32_t quotient = p.extents[dim].quotient(index);
    const std::uint32_t i = index - quotient * p.extents[dim].divisor();
    at.destination += i * p.destination_strides[dim];
    at.source += i * p.source_strides[dim];
    index = quotient;
  }
  return at;
}

template <typename Word>
__global__ void strided_copy_kernel(const __grid_constant__ StridedCopyParams p) {
  const auto* source = static_cast<const Word*>(p.source);
  auto* destination = static_cast<Word*>(p.destination);
  const std::uint32_t step = gridDim.x * kThreads;
  for (std::uint32_t base = blockIdx.x * kThreads + threadIdx.x; base < p.words;
       base += step * kWordsPerThread) {
    Word words[kWordsPerThread];
    std::int64_t to[kWordsPerThread];
#pragma unroll
    for (int k = 0; k < kWordsPerThread; ++k) {
      const std::uint32_t index = base + k * step;
      if (index >= p.words) continue;
      const Offsets at = offsets_of(p, index);
      words[k] = source[at.source];
      to[k] = at.destination;
    }
#pragma unroll
    for (int k = 0; k < kWordsPerThread; ++k) {
      if (base + k * step < p.words) destination[to[k]] = words[k];
    }
  }
}

StridedCopyParams make_params(const TensorView& destination, const TensorView& source,
                              std::int64_t elements_per_word) {
  const int last = source.rank() - 1;
  StridedCopyParams p = {};
  p.destination = destination.data;
  p.source = source.data;
  p.words = static_cast<std::uint32_t>(source.elements() / elements_per_word);
  p.rank = source.rank();
  for (int dim = 0; dim <= last; ++dim) {
    const int from = last - dim;
    const std::int64_t unit = dim == 0 ? 1 : elements_per_word;
    const std::int64_t extent =
        dim == 0 ? source.shape[from] / elements_per_word : source.shape[from];
    p.extents[dim] = FastDivisor(static_cast<std::uint32_t>(extent));
    p.destination_strides[dim] = destination.strides[from] / unit;
    p.source_strides[dim] = source.strides[from] / unit;
  }
  return p;
}

template <typename Word>
void launch(const StridedCopyParams& p, cudaStream_t stream) {
  const unsigned blocks = grid_blocks(p.words, kThreads * kWordsPerThread);
  strided_copy_kernel<Word><<<blocks, kThreads, 0, stream>>>(p);
  check_launch("strided_copy_kernel");
}

void launch_words(const StridedCopyParams& p, std::int64_t word_bytes, cudaStream_t stream) {
  switch (word_bytes) {
    case 16:
      return launch<uint4>(p, stream);
    case 8:
      return launch<std::uint64_t>(p, stream);
    case 4:
      return launch<std::uint32_t>(p, stream);
    case 2:
      return launch<std::uint16_t>(p, stream);
    default:
      return launch<std::uint8_t>(p, stream);
  }
}

int largest_dim(const TensorView& view) {
  int largest = 0;
  for (int dim = 1; dim < view.rank(); ++dim) {
    if (view.shape[dim] > view.shape[largest]) largest = dim;
  }
  return largest;
}

void copy_collapsed(const TensorView& destination, const TensorView& source, cudaStream_t stream) {
  if (destination.is_contiguous() && source.is_contiguous()) {
    check_cuda(
        cudaMemcpyAsync(destination.data, source.data, static_cast<std::size_t>(source.bytes()),
                        cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync (strided copy)");
    return;
  }
  const auto size = static_cast<std::int64_t>(size_bytes(source.dtype));
  const TensorView views[] = {destination, source};
  std::int64_t word_bytes = 16;
  while (word_bytes > size && !allows_vectors(views, word_bytes / size)) word_bytes /= 2;
  if (source.bytes() / word_bytes > kMostWords) {
    const int dim = largest_dim(source);
    const std::int64_t half = source.shape[dim] / 2;
    const std::int64_t rest = source.shape[dim] - half;
    copy_collapsed(destination.narrow(dim, 0, half), source.narrow(dim, 0, half), stream);
    copy_collapsed(destination.narrow(dim, half, rest), source.narrow(dim, half, rest), stream);
    return;
  }
  launch_words(make_params(destination, source, word_bytes / size), word_bytes, stream);
}

}  // namespace

void launch_strided_copy(const TensorView& destination, const TensorView& source, Stream stream) {
  if (!(destination.shape == source.shape) ||
      size_bytes(destination.dtype) != size_bytes(source.dtype)) {
    throw InvalidArgument("copy between " + describe(destination) + " and " + describe(source) +
                          ": shapes and element sizes must be equal");
  }
  if (source.elements() == 0) return;
  TensorView views[] = {destination, source};
  collapse_dims(views);
  copy_collapsed(views[0], views[1], cuda_stream(stream));
}

}  // namespace mladcp
