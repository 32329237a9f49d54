#include "harness/problem.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"
#include "harness/random.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

// values(index) for index = row * width + column, row by row in parallel.
template <typename Values>
void fill(const TensorView& tensor, int threads, const Values& values) {
  if (tensor.elements() == 0) return;
  const std::int64_t width = tensor.shape[tensor.rank() - 1];
  auto* data = tensor.as<BFloat16>();
  parallel_for(threads, tensor.elements() / width, [&](std::int64_t row) {
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      data[i] = BFloat16::from_float(values(i));
    }
  });
}

void fill_normal(const TensorView& tensor, std::uint64_t seed, RandomStream stream, float deviation,
                 int threads) {
  fill(tensor, threads, [=](std::int64_t index) {
    return deviation * random_normal(seed, stream, static_cast<std::uint64_t>(index));
  });
}

// Unused entries of a real block table are stale; here they are wild, so that reading one shows.
constexpr std::int32_t kWildPage = 2147480000;

}  // namespace

DecodeProblem random_decode_problem(const MlaDims& dims, float softmax_scale, std::int64_t heads,
                                    const std::vector<StepRequest>& requests,
                                    const RandomContent& content, int threads) {
  DecodeProblem problem;
  problem.dims = dims;
  problem.softmax_scale = softmax_scale;
  problem.heads = heads;
  problem.requests = requests;
  problem.kv_begin.push_back(0);
  std::int64_t rows = 0;
  for (const StepRequest& request : requests) {
    if (request.length < 0 || request.q_len < 0) {
      throw InvalidArgument("seq_lens: length " + std::to_string(request.length) + " and q_len " +
                            std::to_string(request.q_len) + " must be at least 0");
    }
    problem.kv_begin.push_back(problem.kv_begin.back() + request.length);
    rows += request.q_len;
  }

  Device& host = host_device();
  problem.kv = Tensor(host, DType::kBF16, {problem.kv_begin.back(), dims.row()}, "kv");
  problem.q_nope = Tensor(host, DType::kBF16, {rows, heads, dims.nope}, "q_nope");
  problem.q_rope = Tensor(host, DType::kBF16, {rows, heads, dims.rope}, "q_rope");
  problem.w_uk = Tensor(host, DType::kBF16, {heads, dims.nope, dims.latent}, "w_uk");
  problem.w_uv = Tensor(host, DType::kBF16, {heads, dims.latent, dims.value}, "w_uv");

  const std::uint64_t seed = content.seed;
  const std::int64_t row_width = dims.row();
  fill(problem.kv, threads, [&, row_width](std::int64_t index) {
    const bool latent = index % row_width < dims.latent;
    const auto at = static_cast<std::uint64_t>(index);
    return latent ? content.latent_mean + random_normal(seed, RandomStream::kLatent, at)
                  : random_normal(seed, RandomStream::kKeyRope, at);
  });
  fill_normal(problem.q_nope, seed, RandomStream::kQueryNope, 1.0F, threads);
  fill_normal(problem.q_rope, seed, RandomStream::kQueryRope, 1.0F, threads);
  fill_normal(problem.w_uk, seed, RandomStream::kWeightUk,
              1.0F / std::sqrt(static_cast<float>(dims.nope)), threads);
  fill_normal(problem.w_uv, seed, RandomStream::kWeightUv,
              1.0F / std::sqrt(static_cast<float>(dims.latent)), threads);
  return problem;
}

void make_diagonal(const Tensor& weights) {
  const Shape& shape = weights.shape();
  auto* w = weights.as<BFloat16>();
  std::fill_n(w, weights.view().elements(), BFloat16{});
  for (std::int64_t h = 0; h < shape[0]; ++h, w += shape[1] * shape[2]) {
    for (std::int64_t i = 0; i < std::min(shape[1], shape[2]); ++i) {
      w[i * shape[2] + i] = BFloat16::from_float(1.0F);
    }
  }
}

PagedLayout shuffled_layout(const KvSharding& sharding, std::int64_t page_size,
                            const std::vector<StepRequest>& requests, std::uint64_t seed) {
  PagedLayout layout;
  std::int64_t needed = 0;
  for (const StepRequest& request : requests) {
    const std::int64_t columns = table_columns(sharding, request.length, page_size);
    layout.table.columns = std::max(layout.table.columns, columns);
    needed += columns;
  }
  layout.table.columns += 1;  // at least one unused column in every row
  layout.pages = std::max<std::int64_t>(needed, 1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(needed));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random_bits(seed, RandomStream::kPages, i) % i]);
  }
  std::size_t next = 0;
  for (const StepRequest& request : requests) {
    const std::int64_t columns = table_columns(sharding, request.length, page_size);
    for (std::int64_t column = 0; column < layout.table.columns; ++column) {
      layout.table.pages.push_back(column < columns ? order[next++] : kWildPage);
    }
  }
  return layout;
}

}  // namespace mladcp
