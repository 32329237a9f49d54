#include "reference/hopper_fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr float kNan = std::bit_cast<float>(0x7FFFFFFFu);

// Below every exponent of a real operand or product, also when added to one.
constexpr std::int32_t kNoExponent = -10'000;

// An operand element: its value, and its exponent as the tensor core counts it.
template <typename Real>
struct Element {
  Real value;
  std::int32_t exponent;
};

// The fields of an IEEE-like format with `mantissa_bits` and `exponent_bits`.
template <typename Real>
constexpr Element<Real> decode(std::uint32_t bits, int exponent_bits, int mantissa_bits,
                               Real value) {
  const auto field =
      static_cast<std::int32_t>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1u));
  const std::int32_t bias = (1 << (exponent_bits - 1)) - 1;
  return {value, value == 0 ? kNoExponent : std::max(field, 1) - bias};
}

constexpr std::array<Element<float>, 256> make_e4m3_elements() {
  std::array<Element<float>, 256> elements{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto value = Float8E4M3::from_bits(static_cast<std::uint8_t>(code)).to_float();
    elements[code] = decode(code, 4, 3, value);
  }
  return elements;
}

constexpr std::array<Element<float>, 256> kE4M3Elements = make_e4m3_elements();

// Real holds products and scaled products exactly, Integer their sum in units of 2^(E - F).
struct E4M3Rule {
  using Real = float;
  using Integer = std::int32_t;
  using Operand = Float8E4M3;
  static constexpr int kDepth = 32;
  static constexpr int kFraction = 13;
  static constexpr int kWidth = 14;
  static constexpr std::int32_t kMinProductExponent = 2 * -6;

  static Element<Real> element(Operand x) { return kE4M3Elements[x.bits]; }
};

struct WideRule {
  using Real = double;
  using Integer = std::int64_t;
  static constexpr int kDepth = 16;
  static constexpr int kFraction = 25;
  static constexpr int kWidth = 24;
};

struct Float16Rule : WideRule {
  using Operand = Float16;
  static constexpr std::int32_t kMinProductExponent = 2 * -14;

  static Element<Real> element(Operand x) {
    const std::uint32_t field = (x.bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = x.bits & 0x3FFu;
    const double sign = (x.bits & 0x8000u) != 0 ? -1.0 : 1.0;
    double magnitude = std::ldexp(field == 0 ? mantissa : 1024 + mantissa,
                                  std::max(static_cast<int>(field), 1) - 25);
    if (field == 0x1F) {
      magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                                : std::numeric_limits<double>::quiet_NaN();
    }
    return decode<Real>(x.bits, 5, 10, sign * magnitude);
  }
};

struct BFloat16Rule : WideRule {
  using Operand = BFloat16;
  static constexpr std::int32_t kMinProductExponent = 2 * -126;

  static Element<Real> element(Operand x) {
    return decode<Real>(x.bits, 8, 7, static_cast<double>(x.to_float()));
  }
};

float power_of_two(std::int32_t exponent, float /*as*/) {
  return std::bit_cast<float>((exponent + 127) << 23);
}

double power_of_two(std::int32_t exponent, double /*as*/) {
  return std::bit_cast<double>(static_cast<std::int64_t>(exponent + 1023) << 52);
}

// Truncates toward zero to `width` significant bits by clearing the rest of the mantissa.
float truncate_significand(float x, int width) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & (~0u << (24 - width)));
}

double truncate_significand(double x, int width) {
  const std::uint64_t mask = ~std::uint64_t{0} << (53 - width);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & mask);
}

float narrow(float x) { return x; }

// Toward zero: below 2^-126 an fp32 has fewer bits than the rule keeps.
float narrow(double x) {
  if (std::fabs(x) >= 0x1p128) {
    const float infinity = std::numeric_limits<float>::infinity();
    return x < 0 ? -infinity : infinity;
  }
  const auto nearest = static_cast<float>(x);
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(x);
  return away ? std::nextafter(nearest, 0.0f) : nearest;
}

std::int32_t exponent_of(float accumulator) {
  const auto field =
      static_cast<std::int32_t>((std::bit_cast<std::uint32_t>(accumulator) >> 23) & 0xFFu);
  return accumulator == 0.0f ? 2 * kNoExponent : std::max(field, 1) - 127;
}

// `kLanes` rows of an operand side by side, so that the chains of all lanes run in step: every loop
// over lanes below is SIMD code.
template <typename Rule, int kLanes>
struct Rows {
  using Real = typename Rule::Real;

  std::vector<std::array<Real, kLanes>> values;             // [K, lanes]
  std::vector<std::array<std::int32_t, kLanes>> exponents;  // [K, lanes]
  std::array<bool, kLanes> finite = {};                     // false: zeros stand in for the values

  explicit Rows(std::size_t depth) : values(depth), exponents(depth) {}

  void set_row(int lane, std::span<const typename Rule::Operand> row) {
    finite[lane] = true;
    for (std::size_t k = 0; k < row.size(); ++k) {
      const Element<Real> element = Rule::element(row[k]);
      const bool is_finite = std::isfinite(element.value);
      values[k][lane] = is_finite ? element.value : Real{0};
      exponents[k][lane] = element.exponent;
      finite[lane] = finite[lane] && is_finite;
    }
  }
};

// One instruction: adds the products k of [first, first + Rule::kDepth) to the accumulators.
template <typename Rule, int kLanes>
void accumulate(std::array<float, kLanes>& accumulators, const Rows<Rule, 1>& a,
                const Rows<Rule, kLanes>& b, std::size_t first) {
  using Real = typename Rule::Real;
  using Integer = typename Rule::Integer;
  const std::size_t last = first + Rule::kDepth;

  std::array<std::int32_t, kLanes> largest_product;
  largest_product.fill(kNoExponent);
  for (std::size_t k = first; k < last; ++k) {
    const std::int32_t a_exponent = a.exponents[k][0];
    const std::array<std::int32_t, kLanes>& b_exponents = b.exponents[k];
    for (int lane = 0; lane < kLanes; ++lane) {
      largest_product[lane] = std::max(largest_product[lane], a_exponent + b_exponents[lane]);
    }
  }

  // Everything is counted in units of 2^(E - F); the casts to Integer truncate toward zero.
  std::array<std::int32_t, kLanes> unit_exponent;
  std::array<Real, kLanes> per_unit;
  std::array<Integer, kLanes> sum;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int32_t exponent =
        std::max(std::max(largest_product[lane], Rule::kMinProductExponent),
                 exponent_of(accumulators[lane]));
    unit_exponent[lane] = exponent - Rule::kFraction;
    per_unit[lane] = power_of_two(-unit_exponent[lane], Real{});
    sum[lane] = static_cast<Integer>(static_cast<Real>(accumulators[lane]) * per_unit[lane]);
  }
  for (std::size_t k = first; k < last; ++k) {
    const Real a_value = a.values[k][0];
    const std::array<Real, kLanes>& b_values = b.values[k];
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += static_cast<Integer>(a_value * b_values[lane] * per_unit[lane]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const Real total = truncate_significand(static_cast<Real>(sum[lane]), Rule::kWidth) *
                       power_of_two(unit_exponent[lane], Real{});
    // Without any product E is the accumulator's own exponent, which may be below the range that
    // the units above are made for.
    const float kept = truncate_significand(accumulators[lane], Rule::kWidth);
    const bool has_product = largest_product[lane] >= Rule::kMinProductExponent;
    accumulators[lane] = has_product ? narrow(total) : kept;
  }
}

// The result when an operand or the accumulator is infinite or NaN: what the terms that are not
// finite add up to.
template <typename Rule>
float special_result(std::span<const typename Rule::Operand> a,
                     std::span<const typename Rule::Operand> b, float c) {
  double sum = std::isfinite(c) ? 0.0 : static_cast<double>(c);
  for (std::size_t k = 0; k < b.size(); ++k) {
    const double product = static_cast<double>(Rule::element(a[k]).value) *
                           static_cast<double>(Rule::element(b[k]).value);
    if (!std::isfinite(product)) sum += product;
  }
  return std::isnan(sum) ? kNan : static_cast<float>(sum);
}

void check_depth(std::size_t depth, int instruction_depth) {
  if (depth % static_cast<std::size_t>(instruction_depth) == 0) return;
  throw InvalidArgument("hopper model: a dot product has " + std::to_string(depth) +
                        " pairs; one instruction takes " + std::to_string(instruction_depth) +
                        ", pad with zeros to a multiple of it");
}

template <typename Rule>
float dot(std::span<const typename Rule::Operand> a, std::span<const typename Rule::Operand> b,
          float c) {
  if (a.size() != b.size()) {
    throw InvalidArgument("hopper model: a has " + std::to_string(a.size()) + " elements, b has " +
                          std::to_string(b.size()) + "; both must have the same size");
  }
  check_depth(a.size(), Rule::kDepth);
  Rows<Rule, 1> a_row(a.size());
  Rows<Rule, 1> b_row(b.size());
  a_row.set_row(0, a);
  b_row.set_row(0, b);
  if (!a_row.finite[0] || !b_row.finite[0] || !std::isfinite(c)) {
    return special_result<Rule>(a, b, c);
  }
  std::array<float, 1> accumulator = {c};
  for (std::size_t k = 0; k < a.size(); k += Rule::kDepth) {
    // An accumulator beyond fp32 stays infinite.
    if (std::isinf(accumulator[0])) break;
    accumulate<Rule, 1>(accumulator, a_row, b_row, k);
  }
  return accumulator[0];
}

}  // namespace

float hopper_dot(std::span<const Float8E4M3> a, std::span<const Float8E4M3> b, float c) {
  return dot<E4M3Rule>(a, b, c);
}

float hopper_dot(std::span<const Float16> a, std::span<const Float16> b, float c) {
  return dot<Float16Rule>(a, b, c);
}

float hopper_dot(std::span<const BFloat16> a, std::span<const BFloat16> b, float c) {
  return dot<BFloat16Rule>(a, b, c);
}

void hopper_product(std::span<float> out, std::span<const Float8E4M3> a,
                    std::span<const Float8E4M3> b, std::int64_t depth) {
  constexpr int kLanes = 32;
  const auto k_size = static_cast<std::size_t>(std::max<std::int64_t>(depth, 0));
  if (k_size == 0 || a.size() % k_size != 0 || b.size() % k_size != 0 ||
      out.size() != (a.size() / k_size) * (b.size() / k_size)) {
    throw InvalidArgument("hopper model: sizes of a, b, out are " + std::to_string(a.size()) +
                          ", " + std::to_string(b.size()) + ", " + std::to_string(out.size()) +
                          " with depth " + std::to_string(depth) +
                          "; expected M * depth, N * depth, M * N");
  }
  check_depth(k_size, E4M3Rule::kDepth);
  const std::size_t m_size = a.size() / k_size;
  const std::size_t n_size = b.size() / k_size;

  std::vector<Rows<E4M3Rule, 1>> a_rows(m_size, Rows<E4M3Rule, 1>(k_size));
  for (std::size_t m = 0; m < m_size; ++m) a_rows[m].set_row(0, a.subspan(m * k_size, k_size));

  Rows<E4M3Rule, kLanes> b_rows(k_size);
  for (std::size_t n = 0; n < n_size; n += kLanes) {
    const auto lanes = static_cast<int>(std::min<std::size_t>(kLanes, n_size - n));
    // The last block repeats its first row in the lanes that have none.
    for (int lane = 0; lane < kLanes; ++lane) {
      b_rows.set_row(lane, b.subspan((n + (lane < lanes ? lane : 0)) * k_size, k_size));
    }
    for (std::size_t m = 0; m < m_size; ++m) {
      std::array<float, kLanes> accumulators = {};
      for (std::size_t k = 0; k < k_size; k += E4M3Rule::kDepth) {
        accumulate<E4M3Rule, kLanes>(accumulators, a_rows[m], b_rows, k);
      }
      for (int lane = 0; lane < lanes; ++lane) {
        // e4m3 has no infinity: an element that is not finite is NaN.
        const bool finite = a_rows[m].finite[0] && b_rows.finite[lane];
        out[m * n_size + n + lane] = finite ? accumulators[lane] : kNan;
      }
    }
  }
}

}  // namespace mladcp
