// Register vectors of kN elements and their loads and stores in 16-byte (or narrower) accesses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace mladcp {

template <typename T, int kN>
struct alignas(sizeof(T) * kN < 16 ? sizeof(T) * kN : 16) Vector {
  T values[kN];

  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

template <typename T, int kN>
__device__ Vector<T, kN> load_vector(const T* address) {
  if constexpr (sizeof(Vector<T, kN>) > 16) {  // by halves: larger copies would go through memory
    const Vector<T, kN / 2> low = load_vector<T, kN / 2>(address);
    const Vector<T, kN / 2> high = load_vector<T, kN / 2>(address + kN / 2);
    Vector<T, kN> both;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      both[i] = low[i];
      both[kN / 2 + i] = high[i];
    }
    return both;
  } else {
    return *reinterpret_cast<const Vector<T, kN>*>(address);
  }
}

template <typename T, int kN>
__device__ void store_vector(T* address, const Vector<T, kN>& vector) {
  *reinterpret_cast<Vector<T, kN>*>(address) = vector;
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <typename To, typename From, int kN>
__device__ Vector<To, kN> convert_vector(const Vector<From, kN>& from) {
  Vector<To, kN> to;
#pragma unroll
  for (int i = 0; i < kN; ++i) to[i] = from_float<To>(to_float(from[i]));
  return to;
}

}  // namespace mladcp
