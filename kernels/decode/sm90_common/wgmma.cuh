// The wgmma shapes of the decode kernels: D[64 x N] (+)= A[64 x k] B[N x k]^T,
// B (and A where it is a descriptor) K-major in swizzled shared memory, A
// otherwise in registers. Accumulators are fp32 registers, but an e4m3
// instruction keeps only 14 bits below the largest term: see
// docs/decode_kernel.md, "Accumulation".
//
// Accumulator of m64nN, thread (warp w, g = lane / 4, t = lane % 4): register
// 4j + 2h + b is row 16w + 8h + g, column 8j + 2t + b.
#pragma once

#include <cstdint>

namespace mladcp::sm90 {

enum class Swizzle : std::uint32_t { k128Bytes = 1, k64Bytes = 2 };

// K-major tile whose rows are exactly one swizzle span (128 or 64 bytes) and
// whose 8-row groups are dense. One k step of 32 bytes inside a row is +2, one
// further 8-row group is never needed.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address, Swizzle swizzle) {
  const std::uint64_t group_bytes = swizzle == Swizzle::k128Bytes ? 1024 : 512;
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) |
         ((group_bytes >> 4) << 32) | (static_cast<std::uint64_t>(swizzle) << 62);
}

// The same for an operand whose k runs down the rows: tiles of 64 columns in 128-byte rows,
// 128-byte swizzle, each `tile_bytes` behind the last. One k step of 16 rows is +128.
__device__ __forceinline__ std::uint64_t transposed_descriptor(std::uint32_t address,
                                                               std::uint32_t tile_bytes) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) |
         (static_cast<std::uint64_t>(tile_bytes >> 4) << 16) | (std::uint64_t{1024 >> 4} << 32) |
         (static_cast<std::uint64_t>(Swizzle::k128Bytes) << 62);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from reading accumulators before the wait that precedes
// this call.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void pin_from(float* d) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define MLADCP_ACC8(d, i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MLADCP_ACC16(d, i) MLADCP_ACC8(d, i), MLADCP_ACC8(d, i + 8)
#define MLADCP_ACC32(d, i) MLADCP_ACC16(d, i), MLADCP_ACC16(d, i + 16)
#define MLADCP_D8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define MLADCP_D16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define MLADCP_D32                                                          \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, "                           \
  "%25, %26, %27, %28, %29, %30, %31}"

#define MLADCP_ACC64(d, i) MLADCP_ACC32(d, i), MLADCP_ACC32(d, i + 32)
#define MLADCP_D64                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// A in registers. `accumulate` false overwrites d.
#define MLADCP_WGMMA_RS(NAME, N, SHAPE, TAIL, D, ACC, A0, A1, A2, A3, B, P)                       \
  __device__ __forceinline__ void NAME(float(&d)[N / 2], const std::uint32_t(&a)[4],              \
                                       std::uint64_t b, bool accumulate) {                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P                                           \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned." SHAPE " " D ", {%" A0 ", %" A1 ", %" A2 ", %" A3 \
                 "}, %" B ", p, 1, 1" TAIL ";\n}\n"                                               \
                 : ACC                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                            \
                   "r"(static_cast<int>(accumulate)));                                            \
  }

MLADCP_WGMMA_RS(wgmma_e4m3, 16, "m64n16k32.f32.e4m3.e4m3", "", MLADCP_D8, MLADCP_ACC8(d, 0), "8",
                "9", "10", "11", "12", "13")
MLADCP_WGMMA_RS(wgmma_e4m3, 32, "m64n32k32.f32.e4m3.e4m3", "", MLADCP_D16, MLADCP_ACC16(d, 0), "16",
                "17", "18", "19", "20", "21")
MLADCP_WGMMA_RS(wgmma_e4m3, 64, "m64n64k32.f32.e4m3.e4m3", "", MLADCP_D32, MLADCP_ACC32(d, 0), "32",
                "33", "34", "35", "36", "37")
MLADCP_WGMMA_RS(wgmma_f16, 16, "m64n16k16.f32.f16.f16", ", 0", MLADCP_D8, MLADCP_ACC8(d, 0), "8",
                "9", "10", "11", "12", "13")
MLADCP_WGMMA_RS(wgmma_f16, 32, "m64n32k16.f32.f16.f16", ", 0", MLADCP_D16, MLADCP_ACC16(d, 0), "16",
                "17", "18", "19", "20", "21")
MLADCP_WGMMA_RS(wgmma_f16, 64, "m64n64k16.f32.f16.f16", ", 0", MLADCP_D32, MLADCP_ACC32(d, 0), "32",
                "33", "34", "35", "36", "37")

MLADCP_WGMMA_RS(wgmma_bf16, 64, "m64n64k16.f32.bf16.bf16", ", 0", MLADCP_D32, MLADCP_ACC32(d, 0),
                "32", "33", "34", "35", "36", "37")

#undef MLADCP_WGMMA_RS

// A in shared memory.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " MLADCP_D32 ", %32, %33, p, 1, 1;\n}\n"
      : MLADCP_ACC32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void wgmma_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                           bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MLADCP_D32
      ", %32, %33, p, 1, 1, 0, 0;\n}\n"
      : MLADCP_ACC32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d += A B, B by transposed_descriptor. (N of 256 would not compile: ptxas holds an instruction's
// registers against what a thread has at launch.)
__device__ __forceinline__ void wgmma_bf16_transposed(float (&d)[64], std::uint64_t a,
                                                      std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " MLADCP_D64
      ", %64, %65, p, 1, 1, 0, 1;\n}\n"
      : MLADCP_ACC64(d, 0)
      : "l"(a), "l"(b));
}

}  // namespace mladcp::sm90
