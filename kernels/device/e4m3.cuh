// Vectors of e4m3 codes: quantising by division, exact decoding. The laws are core/float8_e4m3.h's,
// bit for bit.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/device/tensor_core.cuh"
#include "kernels/device/vectors.cuh"

namespace mladcp {

struct E4M3Code {
  std::uint8_t bits;
};

// x / scale, correctly rounded, for bf16 x: the remainder of an approximate quotient corrects it.
// With r = 1 / scale rounded, q = x r, the result q + r (x - q scale) is the rounded quotient for
// all 128 significands of bf16 and all 2^23 of the scale (tests/kernels/quotient_test.cc), as long
// as no step leaves the normal numbers. With a moderate scale, where one might, |q| lies far beyond
// 448 and q itself saturates, or far below 2^-10 and becomes 0.
constexpr bool is_moderate(float scale) { return scale > 0x1p-60F && scale < 0x1p60F; }

class QuotientByScale {
 public:
  __device__ explicit QuotientByScale(float scale) : scale_(scale) {
    reciprocal_ = __fdiv_rn(1.0F, scale);
  }

  __device__ float operator()(__nv_bfloat16 x) const {
    const float value = __bfloat162float(x);
    const float quotient = __fmul_rn(value, reciprocal_);
    const float remainder = __fmaf_rn(-quotient, scale_, value);
    // The remainder of -0 is +0, and would take the sign away.
    const float corrected = copysignf(__fmaf_rn(remainder, reciprocal_, quotient), value);
    return fabsf(quotient) < 1024.0F ? corrected
                                     : quotient;  // infinities and NaN stay what they are
  }

 private:
  float scale_;
  float reciprocal_;
};

// The same for any scale, by the division itself: slow, and heavy on registers.
class DivisionByScale {
 public:
  __device__ explicit DivisionByScale(float scale) : scale_(scale) {}
  __device__ float operator()(__nv_bfloat16 x) const {
    return __fdiv_rn(__bfloat162float(x), scale_);
  }

 private:
  float scale_;
};

// saturate(round_nearest_even(x / scale)); every NaN becomes 0x7F.
template <int kN, typename Quotient>
__device__ Vector<E4M3Code, kN> quantize_vector(const Vector<__nv_bfloat16, kN>& values,
                                                const Quotient& quotient) {
  Vector<E4M3Code, kN> codes;
  if constexpr (kN % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      const float2 quotients = make_float2(quotient(values[i]), quotient(values[i + 1]));
      const auto pair = __nv_cvt_float2_to_fp8x2(quotients, __NV_SATFINITE, __NV_E4M3);
      codes[i].bits = static_cast<std::uint8_t>(pair & 0xFFu);
      codes[i + 1].bits = static_cast<std::uint8_t>(pair >> 8);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      codes[i].bits = __nv_cvt_float_to_fp8(quotient(values[i]), __NV_SATFINITE, __NV_E4M3);
    }
  }
  return codes;
}

// bf16(code * scale), the product in fp32.
template <int kN>
__device__ Vector<__nv_bfloat16, kN> dequantize_vector(const Vector<E4M3Code, kN>& codes,
                                                       float scale) {
  Vector<__nv_bfloat16, kN> values;
  if constexpr (kN % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
      const auto word = *reinterpret_cast<const std::uint32_t*>(&codes[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair = e4m3x2_to_half2(word >> (16 * half));
        const float2 floats = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        *reinterpret_cast<__nv_bfloat162*>(&values[i + 2 * half]) =
            __floats2bfloat162_rn(__fmul_rn(floats.x, scale), __fmul_rn(floats.y, scale));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const __half_raw half = __nv_cvt_fp8_to_halfraw(codes[i].bits, __NV_E4M3);
      values[i] = __float2bfloat16_rn(__fmul_rn(__half2float(__half(half)), scale));
    }
  }
  return values;
}

}  // namespace mladcp
