// A decode problem as global tensors on the host: what an unsharded model would see.
#pragma once

#include <cstdint>
#include <vector>

#include "core/decode_plan.h"
#include "core/kv_cache.h"
#include "core/tensor.h"

namespace mladcp {

struct DecodeProblem {
  MlaDims dims;
  float softmax_scale = 1.0F;
  std::int64_t heads = 0;  // of the model, Ht
  std::vector<StepRequest> requests;

  // Every token of every request, this step's new tokens last. Request b's position p is row
  // kv_begin[b] + p.
  std::vector<std::int64_t> kv_begin;  // [B + 1]
  Tensor kv;                           // [sum of lengths, D] bf16: [latent | rope]

  Tensor q_nope;  // [T, Ht, P] bf16
  Tensor q_rope;  // [T, Ht, R] bf16
  Tensor w_uk;    // [Ht, P, L] bf16
  Tensor w_uv;    // [Ht, L, Vd] bf16

  std::int64_t rows() const { return q_nope.view().size(0); }
};

// How random content is drawn.
struct RandomContent {
  std::uint64_t seed = 0;
  float latent_mean = 0.0F;  // per-channel mean of the latents, in standard deviations
};

// Requests as given; contents normal: queries with deviation 1, latents and RoPE keys 1, weights
// scaled so that absorbed queries and outputs have deviation about 1. InvalidArgument for lengths
// or q_len below 0.
DecodeProblem random_decode_problem(const MlaDims& dims, float softmax_scale, std::int64_t heads,
                                    const std::vector<StepRequest>& requests,
                                    const RandomContent& content, int threads);

// Weights [H, X, Y] bf16 that pass channels on: 1 where x == y, 0 elsewhere.
void make_diagonal(const Tensor& weights);

// A block table in which every request has the pages its length needs under the sharding, in
// shuffled order, and unused columns point at nothing that exists.
struct PagedLayout {
  BlockTable table;
  std::int64_t pages = 0;  // of a rank's cache
};
PagedLayout shuffled_layout(const KvSharding& sharding, std::int64_t page_size,
                            const std::vector<StepRequest>& requests, std::uint64_t seed);

}  // namespace mladcp
