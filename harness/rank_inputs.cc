#include "harness/rank_inputs.h"

#include <cstring>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/float8_e4m3.h"

namespace mladcp {
namespace {

// What a slot that was never filled holds: byte by byte a NaN of the cache's format.
constexpr unsigned char kPoisonE4M3 = 0x7F;
constexpr unsigned char kPoisonBF16 = 0xFF;

void store_row(unsigned char* destination, const BFloat16* row, std::int64_t width, DType dtype,
               float scale) {
  if (dtype == DType::kBF16) {
    std::memcpy(destination, row, static_cast<std::size_t>(width) * sizeof(BFloat16));
    return;
  }
  for (std::int64_t i = 0; i < width; ++i) {
    destination[i] = Float8E4M3::from_float(row[i].to_float() / scale).bits;
  }
}

// Positions [0, length - held_back) of every request, walked one by one.
Tensor fill_cache(const ParallelConfig& config, const DecodeProblem& problem,
                  const PagedLayout& layout, std::int64_t rank, bool before_step) {
  const std::int64_t width = problem.dims.row();
  Tensor cache(host_device(), config.kv_dtype, {layout.pages, config.page_size, width}, "kv_cache");
  const bool fp8 = config.kv_dtype == DType::kE4M3;
  host_device().fill_bytes(cache.view().data, fp8 ? kPoisonE4M3 : kPoisonBF16,
                           static_cast<std::size_t>(cache.view().bytes()), {});
  const std::int64_t row_bytes = width * static_cast<std::int64_t>(size_bytes(config.kv_dtype));
  const KvSharding sharding = config.sharding();
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    const std::int64_t end = before_step ? request.length - request.q_len : request.length;
    const auto table = layout.table.row(static_cast<std::int64_t>(b));
    std::int64_t stored = 0;  // tokens this rank has kept of the request so far
    for (std::int64_t p = 0; p < end; ++p) {
      if (sharding.owner(p) != rank) continue;
      const std::int64_t page = table[static_cast<std::size_t>(stored / config.page_size)];
      const std::int64_t slot = page * config.page_size + stored % config.page_size;
      store_row(cache.as<unsigned char>() + slot * row_bytes,
                problem.kv.as<BFloat16>() + (problem.kv_begin[b] + p) * width, width,
                config.kv_dtype, config.k_scale);
      ++stored;
    }
  }
  return cache;
}

// This step's rows [T, width at column]; rows of padding requests have no token: NaN.
Tensor new_rows(const DecodeProblem& problem, std::int64_t column, std::int64_t width,
                const char* name) {
  Tensor rows(host_device(), DType::kBF16, {problem.rows(), width}, name);
  auto* next = rows.as<BFloat16>();
  for (std::size_t b = 0; b < problem.requests.size(); ++b) {
    const StepRequest& request = problem.requests[b];
    for (std::int64_t j = 0; j < request.q_len; ++j, next += width) {
      const std::int64_t p = request.length - request.q_len + j;
      if (p < 0) {
        std::memset(static_cast<void*>(next), kPoisonBF16,
                    static_cast<std::size_t>(width) * sizeof(BFloat16));
      } else {
        std::memcpy(
            next,
            problem.kv.as<BFloat16>() + (problem.kv_begin[b] + p) * problem.dims.row() + column,
            static_cast<std::size_t>(width) * sizeof(BFloat16));
      }
    }
  }
  return rows;
}

}  // namespace

HeadRange local_heads(const ParallelConfig& config, std::int64_t group, std::int64_t rank) {
  const std::int64_t h = config.local_heads();
  return {(group * config.dcp + rank) * h, h};
}

HeadRange gathered_heads(const ParallelConfig& config, std::int64_t group) {
  return {group * config.gathered_heads(), config.gathered_heads()};
}

DecodeInputs RankInputs::views(const ParallelConfig& config) const {
  return {q_nope, q_rope, kv_c, k_pe, w_uk, w_uv, {cache, config.k_scale}};
}

Tensor cache_before_step(const ParallelConfig& config, const DecodeProblem& problem,
                         const PagedLayout& layout, std::int64_t rank) {
  return fill_cache(config, problem, layout, rank, true);
}

Tensor cache_after_step(const ParallelConfig& config, const DecodeProblem& problem,
                        const PagedLayout& layout, std::int64_t rank) {
  return fill_cache(config, problem, layout, rank, false);
}

RankInputs make_rank_inputs(const ParallelConfig& config, const DecodeProblem& problem,
                            const PagedLayout& layout, std::int64_t group, std::int64_t rank,
                            Device& device, Stream stream) {
  const HeadRange own = local_heads(config, group, rank);
  const HeadRange all = gathered_heads(config, group);
  const HeadRange query = config.replicate_query ? all : own;
  const HeadRange value = config.project_before_merge ? all : own;
  const auto heads_of = [&](const Tensor& tensor, int dim, const HeadRange& range) {
    return copied_to_device(tensor.view().narrow(dim, range.begin, range.count), device, stream);
  };
  RankInputs inputs;
  inputs.q_nope = heads_of(problem.q_nope, 1, query);
  inputs.q_rope = heads_of(problem.q_rope, 1, query);
  inputs.w_uk = heads_of(problem.w_uk, 0, query);
  inputs.w_uv = heads_of(problem.w_uv, 0, value);
  const MlaDims& dims = problem.dims;
  inputs.kv_c = copied_to_device(new_rows(problem, 0, dims.latent, "kv_c"), device, stream);
  inputs.k_pe = copied_to_device(new_rows(problem, dims.latent, dims.rope, "k_pe"), device, stream);
  inputs.cache = copied_to_device(cache_before_step(config, problem, layout, rank), device, stream);
  return inputs;
}

}  // namespace mladcp
