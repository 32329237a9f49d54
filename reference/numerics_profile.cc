#include "reference/numerics_profile.h"

#include <array>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace profiles {
namespace {

constexpr Accumulator kFp32{1, 0x1p-24, 0.0};
// One k = 16 step of f16 or bf16: accumulator and products cut to 2^-25 of the largest, the result
// to 24 bits. 16 products of mixed signs: 4 * 2^-25.
constexpr Accumulator kMma16{16, 0x1p-23, 0x1p-23 + 0x1p-25};
// One k = 32 step of e4m3: cut to 2^-13 of the largest, the result to 14 bits.
constexpr Accumulator kWgmmaFp8Logits{32, 6 * 0x1p-13, 2 * 0x1p-13};
// In P times V of one sign the cuts of the 32 products add up as well.
constexpr Accumulator kWgmmaFp8Values{32, 6 * 0x1p-13, 34 * 0x1p-13};

constexpr ProbabilityFormat kFp32P{};
constexpr ProbabilityFormat kBf16P{0x1p-8, 0.0, 0.0, 0};
constexpr ProbabilityFormat f16_p(int offset) { return {0x1p-11, 0x1p-14, 0x1p-25, offset}; }
constexpr ProbabilityFormat e4m3_p(int offset) { return {0x1p-4, 0x1p-6, 0x1p-10, offset}; }

}  // namespace

const NumericsProfile kCpu{"cpu", kFp32, kFp32, kFp32, 128, kFp32P, 0x1p-22};
const NumericsProfile kCudaGenericFp8{"cuda_generic_fp8", kMma16, kMma16, kMma16, 0,
                                      f16_p(15),          0x1p-22};
const NumericsProfile kCudaGenericBf16{
    "cuda_generic_bf16", kMma16, kMma16, kMma16, 0, kBf16P, 0x1p-22};
// A thread of the Hopper kernels adds 4 of a group of 16 keys to its sum at once.
const NumericsProfile kSm90Fp8{
    "sm90_fp8", kMma16, kWgmmaFp8Logits, kWgmmaFp8Values, 64, e4m3_p(7), 0x1p-22, true, 16};
const NumericsProfile kSm90Fp8F16{
    "sm90_fp8_f16", kMma16, kWgmmaFp8Logits, kMma16, 0, f16_p(5), 0x1p-22, true, 16};
const NumericsProfile kSm90Bf16{"sm90_bf16", kMma16, kMma16, kMma16, 0, kBf16P, 0x1p-22, false, 16};
const NumericsProfile kFlashMlaFp8{
    "flashmla_fp8", kMma16, kWgmmaFp8Logits, kWgmmaFp8Values, 0, e4m3_p(0), 0x1p-22, true};

}  // namespace profiles

const NumericsProfile& profile_from_name(std::string_view name) {
  static constexpr std::array kAll = {
      &profiles::kCpu,        &profiles::kCudaGenericFp8, &profiles::kCudaGenericBf16,
      &profiles::kSm90Fp8,    &profiles::kSm90Fp8F16,     &profiles::kSm90Bf16,
      &profiles::kFlashMlaFp8};
  std::string known;
  for (const NumericsProfile* profile : kAll) {
    if (profile->name == name) return *profile;
    known += (known.empty() ? "" : ", ") + std::string(profile->name);
  }
  throw InvalidArgument("numerics profile '" + std::string(name) + "' is unknown; use one of " +
                        known);
}

}  // namespace mladcp
