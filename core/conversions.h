#pragma once

#include <cstdint>
#include <span>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"

namespace mladcp {

// Conversions of whole arrays, element by element as the scalar functions do it.
// All of them throw InvalidArgument when the sizes of `out` and `in` differ, or when a scale is not
// positive and finite. `out` and `in` must not overlap.

void convert(std::span<Float8E4M3> out, std::span<const float> in);
void convert(std::span<BFloat16> out, std::span<const float> in);
void convert(std::span<float> out, std::span<const Float8E4M3> in);
void convert(std::span<float> out, std::span<const BFloat16> in);

// out[i] = saturate(round_nearest_even(in[i] / scale)), the division in fp32.
void quantize(std::span<Float8E4M3> out, std::span<const float> in, float scale);
void quantize(std::span<Float8E4M3> out, std::span<const BFloat16> in, float scale);

// out[i] = in[i] * scale, the product in fp32, rounded once more for BFloat16.
void dequantize(std::span<float> out, std::span<const Float8E4M3> in, float scale);
void dequantize(std::span<BFloat16> out, std::span<const Float8E4M3> in, float scale);

// How many elements the quantisation clips; see saturates().
std::int64_t count_saturated(std::span<const float> in, float scale);

// The scale under which the largest finite magnitude of `in` becomes 448, and 1 when there is no
// non-zero finite element or when that scale would be no normal fp32. MLA keeps one scale for the
// whole cache row: pass latents and RoPE parts together (call it for each and take the larger), for
// a scale that covers the latents alone clips the RoPE part.
float calibrated_scale(std::span<const float> in);

}  // namespace mladcp
