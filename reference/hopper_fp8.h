// What the tensor cores of Hopper compute: a model of wgmma that is exact in every bit.
//
// A dot product of K pairs is a chain of K / k instructions, k = 32 for e4m3 operands and 16 for
// fp16 and bf16, each adding k products to the fp32 accumulator:
//
//   E = the largest exponent among the accumulator and the k products. A product's exponent is the
//       sum of its operands' exponents (not normalised: 1.5 * 1.5 has exponent 0); a subnormal
//       operand counts with the smallest normal exponent; zeros do not count.
//   Each product and the accumulator are truncated toward zero to a multiple of 2^(E - F), summed
//   exactly, and the sum is truncated toward zero to W significant bits.
//
//   operands     k    F   W
//   e4m3         32   13  14
//   fp16, bf16   16   25  24
//
// Source: measured on an H200. The rule gave all of 196,608 random outputs for each type, and gives
// all of tests/golden/hopper_fp8_dots.safetensors. Not measured, taken as IEEE arithmetic has it:
// a NaN operand or accumulator gives NaN (0x7FFFFFFF); infinities give infinity, or NaN for
// inf - inf and 0 * inf; an accumulator beyond fp32 becomes infinity.
//
// Two consequences: a long chain loses small terms (1.0 * 1.0 in e4m3 stands still at 16,384), and
// all errors of equal signs add up, for every one of them is a truncation.
#pragma once

#include <cstdint>
#include <span>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"

namespace mladcp {

// An IEEE binary16 operand.
struct Float16 {
  std::uint16_t bits = 0;
};

// c + sum_k a[k] * b[k] in one chain. InvalidArgument when the sizes of a and b differ or are no
// multiple of the k of one instruction.
float hopper_dot(std::span<const Float8E4M3> a, std::span<const Float8E4M3> b, float c);
float hopper_dot(std::span<const Float16> a, std::span<const Float16> b, float c);
float hopper_dot(std::span<const BFloat16> a, std::span<const BFloat16> b, float c);

// out[m, n] = hopper_dot(a[m], b[n], 0) for out [M, N], a [M, K], b [N, K], all contiguous;
// K = `depth`. Much faster than as many calls of hopper_dot. InvalidArgument when a size does not
// fit.
void hopper_product(std::span<float> out, std::span<const Float8E4M3> a,
                    std::span<const Float8E4M3> b, std::int64_t depth);

}  // namespace mladcp
