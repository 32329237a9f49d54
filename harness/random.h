// Random values as a function of (seed, index): the same tensor whatever thread fills it, and the
// same bits on every machine.
#pragma once

#include <cstdint>

namespace mladcp {

// Distinct tensors of one problem draw from distinct streams of one seed.
enum class RandomStream : std::uint64_t {
  kQueryNope = 1,
  kQueryRope,
  kLatent,
  kKeyRope,
  kWeightUk,
  kWeightUv,
  kPages,
  kLengths,
  kAudit
};

// A bijective mix of 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

constexpr std::uint64_t random_bits(std::uint64_t seed, RandomStream stream, std::uint64_t index) {
  return mix_bits(mix_bits(seed ^ (static_cast<std::uint64_t>(stream) << 56U)) + index);
}

// Mean 0, standard deviation 1: the sum of four 16-bit uniforms, so |x| <= 2 sqrt 3.
constexpr float random_normal(std::uint64_t seed, RandomStream stream, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, stream, index);
  const auto sum = static_cast<float>((bits & 0xFFFFU) + ((bits >> 16U) & 0xFFFFU) +
                                      ((bits >> 32U) & 0xFFFFU) + (bits >> 48U));
  constexpr float kMean = 2.0F * 65535.0F;
  constexpr float kInverseDeviation = 1.7320508F / 65536.0F;
  return (sum - kMean) * kInverseDeviation;
}

}  // namespace mladcp
