#include "reference/cpu_combine_ops.h"

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/bfloat16.h"
#include "core/lse_merge.h"
#include "reference/host_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

constexpr std::int64_t kRowGrain = 32;  // rows of X elements a thread takes at a time

void expect_host_all(std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) expect_host(view);
}

float& lse_at(const TensorView& lse, std::int64_t offset) { return lse.as<float>()[offset]; }

// acc += w * row, or nothing where the weight is 0: whatever the row holds then stays out.
void add_weighted(std::vector<float>& acc, float weight, const std::vector<float>& row) {
  if (weight == 0.0F) return;
  for (std::size_t x = 0; x < acc.size(); ++x) acc[x] += weight * row[x];
}

// Two bf16 lanes carry the bits of one fp32, low half first.
std::array<BFloat16, 2> split_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {BFloat16::from_bits(static_cast<std::uint16_t>(bits & 0xFFFFU)),
          BFloat16::from_bits(static_cast<std::uint16_t>(bits >> 16U))};
}
float joined_bits(BFloat16 low, BFloat16 high) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(low.bits) |
                              static_cast<std::uint32_t>(high.bits) << 16U);
}

}  // namespace

void CpuCombineOps::mask_empty(const TensorView& out, const TensorView& lse,
                               const TensorView& visible, Stream) {
  expect_host_all({out, lse, visible});
  expect_rank(out, 3);
  expect_float(out);
  const std::int64_t rows = out.size(0);
  const std::int64_t heads = out.size(1);
  expect(lse, DType::kF32, {rows, heads});
  expect(visible, DType::kI32, {rows});
  const std::vector<float> zeros(static_cast<std::size_t>(out.size(2)), 0.0F);
  for (std::int64_t t = 0; t < rows; ++t) {
    if (index_at(visible, t) > 0) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      store_row(out, offset_of(out, t, h), zeros.data());
      lse_at(lse, offset_of(lse, t, h)) = kEmptyLse;
    }
  }
}

void CpuCombineOps::correct(const TensorView& corrected, const TensorView& partial,
                            const TensorView& lses, int rank, Stream) {
  expect_host_all({corrected, partial, lses});
  expect_rank(partial, 3);
  expect_float(partial);
  expect_float(corrected);
  expect_shape(corrected, partial.shape);
  const std::int64_t heads = partial.size(1);
  expect_rank(lses, 3);
  expect(lses, DType::kF32, {lses.size(0), partial.size(0), heads});
  if (rank < 0 || rank >= lses.size(0)) lses.select(0, rank);  // throws, naming the tensor
  const int world = static_cast<int>(lses.size(0));
  parallel_for(
      threads_, partial.size(0) * heads,
      [&](std::int64_t row) {
        const std::int64_t t = row / heads;
        const std::int64_t h = row % heads;
        const auto lse_of = [&](int n) { return lse_at(lses, offset_of(lses, n, t, h)); };
        const float weight = LseMerge(world, lse_of).weight(lse_of(rank));
        std::vector<float> values(static_cast<std::size_t>(partial.size(2)));
        load_row(values.data(), partial, offset_of(partial, t, h));
        for (float& value : values) value = weighted(weight, value);
        store_row(corrected, offset_of(corrected, t, h), values.data());
      },
      kRowGrain);
}

void CpuCombineOps::merge(const TensorView& out, const TensorView& lse, const TensorView& partials,
                          const TensorView& lses, Stream) {
  expect_host_all({out, lse, partials, lses});
  expect_rank(partials, 4);
  expect_float(partials);
  expect_float(out);
  const std::int64_t rows = partials.size(1);
  const std::int64_t heads = partials.size(2);
  const std::int64_t width = partials.size(3);
  expect(lses, DType::kF32, {partials.size(0), rows, heads});
  expect_shape(out, {rows, heads, width});
  expect(lse, DType::kF32, {rows, heads});
  const int world = static_cast<int>(partials.size(0));
  parallel_for(
      threads_, rows * heads,
      [&](std::int64_t row) {
        const std::int64_t t = row / heads;
        const std::int64_t h = row % heads;
        const auto lse_of = [&](int n) { return lse_at(lses, offset_of(lses, n, t, h)); };
        const LseMerge law(world, lse_of);
        std::vector<float> acc(static_cast<std::size_t>(width), 0.0F);
        std::vector<float> values(acc.size());
        for (int n = 0; n < world; ++n) {
          load_row(values.data(), partials, offset_of(partials, n, t, h));
          add_weighted(acc, law.weight(lse_of(n)), values);
        }
        store_row(out, offset_of(out, t, h), acc.data());
        lse_at(lse, offset_of(lse, t, h)) = law.lse();
      },
      kRowGrain);
}

void CpuCombineOps::merge_into(const TensorView& running, const TensorView& running_lse,
                               const TensorView& partial, const TensorView& partial_lse, Stream) {
  expect_host_all({running, running_lse, partial, partial_lse});
  expect_rank(running, 3);
  expect_dtype(running, DType::kF32);
  expect(partial, DType::kF32, running.shape);
  const std::int64_t heads = running.size(1);
  expect(running_lse, DType::kF32, {running.size(0), heads});
  expect(partial_lse, DType::kF32, {running.size(0), heads});
  parallel_for(
      threads_, running.size(0) * heads,
      [&](std::int64_t row) {
        const std::int64_t m = row / heads;
        const std::int64_t h = row % heads;
        float& lse = lse_at(running_lse, offset_of(running_lse, m, h));
        const float other = lse_at(partial_lse, offset_of(partial_lse, m, h));
        if (is_empty_lse(other)) return;
        const LseMerge law(2, [&](int n) { return n == 0 ? lse : other; });
        std::vector<float> acc(static_cast<std::size_t>(running.size(2)), 0.0F);
        std::vector<float> values(acc.size());
        load_row(values.data(), running, offset_of(running, m, h));
        add_weighted(acc, law.weight(lse), values);
        load_row(values.data(), partial, offset_of(partial, m, h));
        add_weighted(acc, law.weight(other), values);
        store_row(running, offset_of(running, m, h), acc.data());
        lse = law.lse();
      },
      kRowGrain);
}

void CpuCombineOps::pack(const TensorView& packed, const TensorView& partial, const TensorView& lse,
                         Stream) {
  expect_host_all({packed, partial, lse});
  expect_rank(packed, 4);
  expect_rank(partial, 3);
  const std::int64_t world = packed.size(0);
  const std::int64_t rows = partial.size(0);
  const std::int64_t heads = packed.size(2);
  const std::int64_t width = partial.size(2);
  expect(packed, DType::kBF16, {world, rows, heads, width + 2});
  expect(partial, DType::kBF16, {rows, world * heads, width});
  expect(lse, DType::kF32, {rows, world * heads});
  const TensorView values = packed.narrow(3, 0, width);
  const TensorView lanes = packed.narrow(3, width, 2);
  parallel_for(
      threads_, rows * world * heads,
      [&](std::int64_t row) {
        const std::int64_t t = row / (world * heads);
        const std::int64_t g = row % (world * heads);
        const std::int64_t s = g / heads;
        const std::int64_t h = g % heads;
        copy_row(values, offset_of(values, s, t, h), partial, offset_of(partial, t, g));
        const auto bits = split_bits(lse_at(lse, offset_of(lse, t, g)));
        auto* lane = lanes.as<BFloat16>() + offset_of(lanes, s, t, h);
        lane[0] = bits[0];
        lane[lanes.strides[3]] = bits[1];
      },
      kRowGrain);
}

void CpuCombineOps::unpack(const TensorView& partials, const TensorView& lses,
                           const TensorView& packed, Stream) {
  expect_host_all({partials, lses, packed});
  expect_rank(packed, 4);
  expect_rank(partials, 4);
  const std::int64_t world = packed.size(0);
  const std::int64_t rows = packed.size(1);
  const std::int64_t heads = packed.size(2);
  const std::int64_t width = partials.size(3);
  expect(packed, DType::kBF16, {world, rows, heads, width + 2});
  expect(partials, DType::kBF16, {world, rows, heads, width});
  expect(lses, DType::kF32, {world, rows, heads});
  const TensorView values = packed.narrow(3, 0, width);
  const TensorView lanes = packed.narrow(3, width, 2);
  parallel_for(
      threads_, world * rows * heads,
      [&](std::int64_t row) {
        const std::int64_t n = row / (rows * heads);
        const std::int64_t t = row / heads % rows;
        const std::int64_t h = row % heads;
        copy_row(partials, offset_of(partials, n, t, h), values, offset_of(values, n, t, h));
        const auto* lane = lanes.as<const BFloat16>() + offset_of(lanes, n, t, h);
        lse_at(lses, offset_of(lses, n, t, h)) = joined_bits(lane[0], lane[lanes.strides[3]]);
      },
      kRowGrain);
}

void CpuCombineOps::round_to(const TensorView& out, const TensorView& value, Stream) {
  expect_host_all({out, value});
  expect_rank(value, 3);
  expect_float(out);
  expect_float(value);
  expect_shape(out, value.shape);
  const std::int64_t heads = value.size(1);
  parallel_for(
      threads_, value.size(0) * heads,
      [&](std::int64_t row) {
        std::vector<float> values(static_cast<std::size_t>(value.size(2)));
        load_row(values.data(), value, offset_of(value, row / heads, row % heads));
        store_row(out, offset_of(out, row / heads, row % heads), values.data());
      },
      kRowGrain);
}

}  // namespace mladcp
