// Compares Float8E4M3 and BFloat16 with the CUDA headers (their host emulation): all 2^32 floats
// into both formats, and all codes of both back. Takes minutes, so it is no test of the default
// suite. Prints the differences found; exit status 1 when there is one.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"

namespace {

using mladcp::BFloat16;
using mladcp::Float8E4M3;

std::atomic<std::uint64_t> differences{0};

void expect_equal(const char* what, std::uint32_t input, std::uint32_t ours, std::uint32_t cuda) {
  if (ours == cuda) return;
  constexpr std::uint64_t kPrinted = 20;
  if (differences.fetch_add(1) < kPrinted) {
    std::printf("%s of 0x%08X: 0x%X here, 0x%X in the CUDA headers\n", what, input, ours, cuda);
  }
}

void compare_floats(std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t i = begin; i < end; ++i) {
    const auto pattern = static_cast<std::uint32_t>(i);
    const auto value = std::bit_cast<float>(pattern);
    expect_equal("e4m3", pattern, Float8E4M3::from_float(value).bits,
                 __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
    expect_equal("bf16", pattern, BFloat16::from_float(value).bits,
                 static_cast<__nv_bfloat16_raw>(__float2bfloat16(value)).x);
  }
}

void compare_codes() {
  for (std::uint32_t code = 0; code < 256; ++code) {
    __nv_fp8_e4m3 cuda_value;
    cuda_value.__x = static_cast<__nv_fp8_storage_t>(code);
    const float ours = Float8E4M3::from_bits(static_cast<std::uint8_t>(code)).to_float();
    expect_equal("fp32 of e4m3 code", code, std::bit_cast<std::uint32_t>(ours),
                 std::bit_cast<std::uint32_t>(static_cast<float>(cuda_value)));
  }
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const __nv_bfloat16_raw raw{static_cast<unsigned short>(code)};
    const float ours = BFloat16::from_bits(static_cast<std::uint16_t>(code)).to_float();
    expect_equal("fp32 of bf16 code", code, std::bit_cast<std::uint32_t>(ours),
                 std::bit_cast<std::uint32_t>(__bfloat162float(__nv_bfloat16(raw))));
  }
}

}  // namespace

int main() {
  compare_codes();
  constexpr std::uint64_t kFloats = std::uint64_t{1} << 32;
  const std::uint64_t workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::uint64_t w = 0; w < workers; ++w) {
    threads.emplace_back(compare_floats, kFloats * w / workers, kFloats * (w + 1) / workers);
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("4294967296 floats to e4m3 and bf16, 256 and 65536 codes to fp32: %llu differences\n",
              static_cast<unsigned long long>(differences.load()));
  return differences.load() == 0 ? 0 : 1;
}
