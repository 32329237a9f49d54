// Faults between a rank's query heads and the query attention sees, and in the cache it writes.
#include <algorithm>
#include <cmath>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/float8_e4m3.h"
#include "harness/fault.h"
#include "harness/fault_variations.h"

namespace mladcp {
namespace {

// q_scale and k_scale whose reciprocals are not exact.
Scenario odd_scales(float q_scale, float k_scale) {
  Scenario scenario = fault_scenario();
  scenario.parallel.q_scale = q_scale;
  scenario.parallel.k_scale = k_scale;
  return scenario;
}

// Recodes an e4m3 query [T, H, D] from its bf16 parts with a rule of its own.
template <typename Rule>
OpFunctions quantise_by(const Rule& rule) {
  OpFunctions functions;
  functions.concat_quantize = [rule](QueryOps& next, const TensorView& out,
                                     const TensorView& latent, const TensorView& rope,
                                     float q_scale, Stream stream) {
    next.concat_quantize(out, latent, rope, q_scale, stream);
    const Tensor l = copied_to_host(latent, stream);
    const Tensor r = copied_to_host(rope, stream);
    const std::int64_t latent_width = latent.size(2);
    const std::int64_t rope_width = rope.size(2);
    const std::int64_t width = latent_width + rope_width;
    edit_tensor(out, stream, [&](const TensorView& host) {
      for (std::int64_t i = 0; i < host.elements(); ++i) {
        const std::int64_t row = i / width;
        const std::int64_t c = i % width;
        const bool is_latent = c < latent_width;
        const float x = is_latent ? value_at(l, row * latent_width + c)
                                  : value_at(r, row * rope_width + c - latent_width);
        host.as<Float8E4M3>()[i] = rule(x, q_scale, is_latent, host.as<Float8E4M3>()[i]);
      }
    });
  };
  return functions;
}

Float8E4M3 truncated(float x) {
  const Float8E4M3 nearest = Float8E4M3::from_float(x);
  if (std::fabs(nearest.to_float()) <= std::fabs(x)) return nearest;
  return Float8E4M3::from_bits(static_cast<std::uint8_t>(nearest.bits - 1));  // toward zero
}

std::vector<Fault> quantise_faults() {
  std::vector<Fault> faults;
  faults.push_back(op_fault("quantise-by-reciprocal",
                            "x * (1 / scale) instead of x / scale (ml_dtypes 400)", "quantise", 0,
                            quantise_by([](float x, float q_scale, bool, Float8E4M3) {
                              return Float8E4M3::from_float(x * (1.0F / q_scale));
                            }),
                            odd_scales(7.0F / 64.0F, 0.1F)));
  faults.push_back(op_fault("quantise-truncates", "rounding toward zero", "quantise",
                            Fault::kEveryRank,
                            quantise_by([](float x, float q_scale, bool, Float8E4M3) {
                              return truncated(x / q_scale);
                            })));
  faults.push_back(
      op_fault("quantise-overflow-nan", "no saturation: 449 and above become NaN", "quantise", 1,
               quantise_by([](float x, float q_scale, bool, Float8E4M3 code) {
                 return std::fabs(x / q_scale) > 448.0F ? Float8E4M3::from_bits(0x7F) : code;
               }),
               odd_scales(0.004F, 1.0F)));
  faults.push_back(op_fault("quantise-rope-unscaled", "the RoPE part misses q_scale", "quantise",
                            Fault::kEveryRank,
                            quantise_by([](float x, float, bool is_latent, Float8E4M3 code) {
                              return is_latent ? code : Float8E4M3::from_float(x);
                            }),
                            odd_scales(0.25F, 1.0F)));
  faults.push_back(op_fault("quantise-subnormals-flushed", "codes below 2^-6 become 0", "quantise",
                            Fault::kEveryRank, quantise_by([](float, float, bool, Float8E4M3 code) {
                              return (code.bits & 0x78U) == 0 ? Float8E4M3::from_bits(0) : code;
                            })));
  faults.push_back(op_fault("quantise-own-scale", "each rank its own dynamic q_scale", "quantise",
                            2, quantise_by([](float x, float q_scale, bool, Float8E4M3) {
                              return Float8E4M3::from_float(x / (1.25F * q_scale));
                            })));

  OpFunctions swapped;
  swapped.concat_quantize = [](QueryOps& next, const TensorView& out, const TensorView& latent,
                               const TensorView& rope, float q_scale, Stream stream) {
    next.concat_quantize(out, rope.renamed("latent"), latent.renamed("rope"), q_scale, stream);
  };
  faults.push_back(op_fault("concat-rope-first", "rope | latent instead of latent | rope",
                            "quantise", Fault::kEveryRank, swapped));

  OpFunctions unwritten;
  unwritten.concat_quantize = [](QueryOps& next, const TensorView& out, const TensorView& latent,
                                 const TensorView& rope, float q_scale, Stream stream) {
    next.concat_quantize(out, latent, rope, q_scale, stream);
    if (out.size(0) == 0) return;
    // A kernel fused with the cache write returns early where slot is -1; here the last row.
    edit_tensor(out.narrow(0, out.size(0) - 1, 1), stream, [](const TensorView& host) {
      host_device().fill_bytes(host.data, 0x7F, static_cast<std::size_t>(host.bytes()), {});
    });
  };
  faults.push_back(op_fault("query-unwritten", "query left unwritten where slot is -1 (vLLM 50095)",
                            "quantise", 1, unwritten));
  return faults;
}

std::vector<Fault> absorb_faults() {
  std::vector<Fault> faults;
  OpFunctions rotated;
  rotated.absorb = [](QueryOps& next, const TensorView& out, const TensorView& q_nope,
                      const TensorView& w_uk, Stream stream) {
    const std::int64_t h = w_uk.size(0);
    next.absorb(out.narrow(1, 0, h - 1), q_nope.narrow(1, 0, h - 1), w_uk.narrow(0, 1, h - 1),
                stream);
    next.absorb(out.narrow(1, h - 1, 1), q_nope.narrow(1, h - 1, 1), w_uk.narrow(0, 0, 1), stream);
  };
  faults.push_back(
      op_fault("absorb-next-head", "W_UK of the neighbouring head", "absorb", 0, rotated));
  OpFunctions coarse;
  coarse.absorb = [](QueryOps& next, const TensorView& out, const TensorView& q_nope,
                     const TensorView& w_uk, Stream stream) {
    next.absorb(out, q_nope, w_uk, stream);
    map_values(out, stream,
               [](float x, std::int64_t) { return Float8E4M3::from_float(x).to_float(); });
  };
  faults.push_back(op_fault("absorb-rounded-to-e4m3", "absorbed query kept in FP8 before its scale",
                            "absorb", Fault::kEveryRank, coarse));
  OpFunctions scaled;
  scaled.absorb = [](QueryOps& next, const TensorView& out, const TensorView& q_nope,
                     const TensorView& w_uk, Stream stream) {
    next.absorb(out, q_nope, w_uk, stream);
    map_values(out, stream, [](float x, std::int64_t) { return 1.01F * x; });
  };
  faults.push_back(op_fault("absorb-one-percent", "a scale that is 1 % off", "absorb",
                            Fault::kEveryRank, scaled));
  return faults;
}

}  // namespace

std::vector<Fault> query_faults() {
  std::vector<Fault> faults = quantise_faults();
  for (Fault& fault : absorb_faults()) faults.push_back(std::move(fault));
  return faults;
}

std::vector<Fault> cache_faults() {
  const auto write_with =
      [](const std::function<void(CacheOps&, KvCache, const TensorView&, const TensorView&,
                                  const TensorView&, Stream)>& write) {
        OpFunctions functions;
        functions.write = write;
        return functions;
      };
  std::vector<Fault> faults;
  faults.push_back(
      op_fault("write-inverse-scale", "cache holds x * k_scale", "write", Fault::kEveryRank,
               write_with([](CacheOps& next, KvCache cache, const TensorView& kv_c,
                             const TensorView& k_pe, const TensorView& slots, Stream stream) {
                 cache.scale = 1.0F / cache.scale;
                 next.write(cache, kv_c, k_pe, slots, stream);
               }),
               odd_scales(1.0F, 0.5F)));
  faults.push_back(op_fault(
      "write-unscaled", "cache written at scale 1, read at k_scale", "write", Fault::kEveryRank,
      write_with([](CacheOps& next, KvCache cache, const TensorView& kv_c, const TensorView& k_pe,
                    const TensorView& slots, Stream stream) {
        cache.scale = 1.0F;
        next.write(cache, kv_c, k_pe, slots, stream);
      }),
      odd_scales(1.0F, 0.1F)));
  faults.push_back(
      op_fault("write-negative-slot-clamped", "slot -1 clamped to 0", "write", 1,
               write_with([](CacheOps& next, KvCache cache, const TensorView& kv_c,
                             const TensorView& k_pe, const TensorView& slots, Stream stream) {
                 const Tensor clamped = copied_to_host(slots, stream);
                 for (std::int64_t i = 0; i < slots.elements(); ++i) {
                   auto& slot = clamped.as<std::int64_t>()[i];
                   slot = std::max<std::int64_t>(slot, 0);
                 }
                 const Tensor on_device = copied_to_device(clamped, *slots.device, stream);
                 next.write(cache, kv_c, k_pe, on_device, stream);
                 slots.device->synchronize(stream);
               })));
  faults.push_back(
      op_fault("write-last-token-lost", "the last row of the batch is not written", "write",
               Fault::kEveryRank,
               write_with([](CacheOps& next, KvCache cache, const TensorView& kv_c,
                             const TensorView& k_pe, const TensorView& slots, Stream stream) {
                 const std::int64_t t = slots.size(0) - 1;
                 next.write(cache, kv_c.narrow(0, 0, t), k_pe.narrow(0, 0, t),
                            slots.narrow(0, 0, t), stream);
               })));
  faults.push_back(
      op_fault("write-rope-of-next-token", "latent rows shifted against RoPE rows", "write",
               Fault::kEveryRank,
               write_with([](CacheOps& next, KvCache cache, const TensorView& kv_c,
                             const TensorView& k_pe, const TensorView& slots, Stream stream) {
                 const std::int64_t t = slots.size(0);
                 next.write(cache, kv_c, k_pe, slots, stream);
                 next.write(cache, kv_c.narrow(0, 0, t - 1), k_pe.narrow(0, 1, t - 1),
                            slots.narrow(0, 0, t - 1), stream);
               })));
  return faults;
}

}  // namespace mladcp
