// Combining on the GPU against the host: packing bit for bit, weights within the error of two
// exponentials.
#include <cmath>
#include <limits>
#include <vector>

#include "core/lse_merge.h"
#include "reference/cpu_ops.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CombineOpsTest : public GpuTest {
 protected:
  CpuOps cpu_{8};
};

// Both sides follow the law in fp32 and differ by their exp and log (4 units each), one division,
// the order of an fma, and the rounding of the result: `magnitude` bounds the terms that were
// summed.
void expect_merged(const char* what, const TensorView& got, const TensorView& wanted,
                   float magnitude, int ranks) {
  const std::vector<float> a = values_of(got);
  const std::vector<float> b = values_of(wanted);
  const double rounding = got.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinities too
    const double bound = 2 * rounding * std::abs(b[i]) + 0x1p-24 * (16 + 2 * ranks) * magnitude;
    ASSERT_LE(std::abs(double{a[i]} - b[i]), bound)
        << what << " element " << i << " got " << a[i] << ", wanted " << b[i];
  }
}

// LSEs [N, T, H] with every corner: empty ranks, all empty, wide and narrow gaps, foreign markers.
Tensor lses_with_corners(std::int64_t ranks, std::int64_t rows, std::int64_t heads) {
  const std::vector<std::vector<float>> corners = {
      {-kInfinity, 1.0F}, {1.0F, -kInfinity},  {-kInfinity, -kInfinity}, {kInfinity, 1.0F},
      {kNan, 1.0F},       {1000.0F, -1000.0F}, {88.8F, 88.9F},           {-3.0F, 0.5F}};
  Tensor lses = host_tensor(DType::kF32, {ranks, rows, heads}, "lses");
  Numbers numbers(4);
  for (std::int64_t n = 0; n < ranks; ++n) {
    for (std::int64_t i = 0; i < rows * heads; ++i) {
      const auto& corner = corners[static_cast<std::size_t>(i) % corners.size()];
      const bool plain = i % 16 >= 8;
      lses.as<float>()[n * rows * heads + i] =
          plain || n >= 2 ? numbers.normal(1.0F, 3.0F) : corner[static_cast<std::size_t>(n)];
      if (corner[0] == -kInfinity && corner[1] == -kInfinity && !plain) {
        lses.as<float>()[n * rows * heads + i] = -kInfinity;
      }
    }
  }
  return lses;
}

// Partials whose rows of weight 0 hold NaN and infinities.
Tensor partials_of(const Tensor& lses, std::int64_t width, DType dtype) {
  const Shape& s = lses.shape();
  Numbers numbers(6);
  Tensor partials = random_tensor(dtype, {s[0], s[1], s[2], width}, "partials", numbers, 0.5F);
  for (std::int64_t row = 0; row < s[0] * s[1] * s[2]; ++row) {
    if (!is_empty_lse(lses.as<float>()[row])) continue;
    for (std::int64_t x = 0; x < width; ++x) {
      const float value = x % 3 == 0 ? kNan : (x % 3 == 1 ? kInfinity : -kInfinity);
      if (dtype == DType::kF32) {
        partials.as<float>()[row * width + x] = value;
      } else {
        partials.as<BFloat16>()[row * width + x] = BFloat16::from_float(value);
      }
    }
  }
  return partials;
}

TEST_F(CombineOpsTest, MasksRowsThatSeeNothing) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t width : {512, 128, 7}) {
    for (const std::int64_t pad : {0, 8, 1}) {
      const std::int64_t rows = 9, heads = 16;
      const Tensor visible =
          index_tensor(std::vector<std::int32_t>{0, 1, 0, 7, 8, 0, 1000, 0, 3}, "visible");
      Tensor out = host_tensor(DType::kBF16, {rows, heads, width}, "out");
      Tensor lse = host_tensor(DType::kF32, {rows, heads}, "lse");
      poison(out);
      for (std::int64_t i = 0; i < lse.view().elements(); ++i)
        lse.as<float>()[i] = i % 2 == 0 ? kInfinity : 1.5F;
      Tensor storage;
      const TensorView out_view = strided(out, storage, pad);
      const Tensor lse_device = upload(lse);
      cpu_.combine.mask_empty(out, lse, visible, kHostStream);
      ops.combine.mask_empty(out_view, lse_device, upload(visible), stream());
      expect_same_bytes("out", download(out_view), out);
      expect_same_bytes("lse", download(lse_device), lse);
    }
  }
}

TEST_F(CombineOpsTest, CorrectsByTheRanksWeight) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t ranks : {1, 2, 3, 4, 8, 20}) {
    const std::int64_t rows = 5, heads = 15;  // an odd number of rows
    const Tensor lses = lses_with_corners(ranks, rows, heads);
    const Tensor lses_device = upload(lses);
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const DType out : {DType::kBF16, DType::kF32}) {
        for (const std::int64_t width : {512, 128, 9}) {
          const Tensor partials = partials_of(lses, width, in);
          for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, rank " + std::to_string(rank) +
                         " width " + std::to_string(width));
            const TensorView partial = partials.view().select(0, rank);
            const Tensor wanted = host_tensor(out, partial.shape, "corrected");
            cpu_.combine.correct(wanted, partial, lses, rank, kHostStream);
            // Stored heads first, as in a step.
            const Tensor got_storage = poisoned(out, {heads, rows, width}, "corrected");
            const TensorView got = got_storage.view().transposed(0, 1);
            Tensor storage;
            ops.combine.correct(got, strided(partial, storage, width % 8 == 0 ? 8 : 1), lses_device,
                                rank, stream());
            expect_merged("corrected", download(got), wanted, 6.0F, static_cast<int>(ranks));
            if (in != out) continue;
            const Tensor in_place = upload(partial);
            ops.combine.correct(in_place, in_place, lses_device, rank, stream());
            expect_same_bytes("in place", download(in_place), download(got));
          }
        }
      }
    }
  }
}

TEST_F(CombineOpsTest, MergesPartials) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t heads : {1, 8, 16}) {
      const std::int64_t rows = 17;
      const Tensor lses = lses_with_corners(ranks, rows, heads);
      for (const DType in : {DType::kBF16, DType::kF32}) {
        for (const DType out : {DType::kBF16, DType::kF32}) {
          for (const std::int64_t width : {512, 128, 9}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, width " + std::to_string(width));
            const Tensor partials = partials_of(lses, width, in);
            const Tensor wanted = host_tensor(out, {rows, heads, width}, "out");
            const Tensor wanted_lse = host_tensor(DType::kF32, {rows, heads}, "lse");
            cpu_.combine.merge(wanted, wanted_lse, partials, lses, kHostStream);
            const Tensor got = poisoned(out, {rows, heads, width}, "out");
            const Tensor got_lse = poisoned(DType::kF32, {rows, heads}, "lse");
            ops.combine.merge(got, got_lse, upload(partials), upload(lses), stream());
            expect_merged("out", download(got), wanted, 6.0F, static_cast<int>(ranks));
            expect_merged("lse", download(got_lse), wanted_lse, 1000.0F, static_cast<int>(ranks));
          }
        }
      }
    }
  }
}

TEST_F(CombineOpsTest, MergesIntoARunningResult) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t width : {128, 9}) {
    const std::int64_t rows = 13, heads = 16;
    const Tensor lses = lses_with_corners(2, rows, heads);
    const Tensor partials = partials_of(lses, width, DType::kF32);
    const TensorView lse0 = lses.view().select(0, 0), lse1 = lses.view().select(0, 1);
    const TensorView partial0 = partials.view().select(0, 0),
                     partial1 = partials.view().select(0, 1);
    const Tensor running = copied_to_host(partial0, kHostStream);
    const Tensor running_lse = copied_to_host(lse0, kHostStream);
    const Tensor running_device = upload(partial0);
    const Tensor running_lse_device = upload(lse0);
    cpu_.combine.merge_into(running, running_lse, partial1, lse1, kHostStream);
    ops.combine.merge_into(running_device, running_lse_device, upload(partial1), upload(lse1),
                           stream());
    const Tensor got = download(running_device);
    const Tensor got_lse = download(running_lse_device);
    for (std::int64_t row = 0; row < rows * heads; ++row) {
      const TensorView got_row = got.view().merged(0).select(0, row);
      if (is_empty_lse(lse1.as<const float>()[row])) {  // untouched, NaN and all
        expect_same_bytes("row", got_row, partial0.merged(0).select(0, row));
        continue;
      }
      SCOPED_TRACE(row);
      expect_merged("row", got_row, running.view().merged(0).select(0, row), 6.0F, 2);
    }
    for (std::int64_t row = 0; row < rows * heads; ++row) {
      const TensorView lse_row = got_lse.view().reshaped({rows * heads}).narrow(0, row, 1);
      if (is_empty_lse(lse1.as<const float>()[row])) continue;
      expect_merged("lse", lse_row, running_lse.view().reshaped({rows * heads}).narrow(0, row, 1),
                    1000.0F, 2);
    }
  }
}

TEST_F(CombineOpsTest, PacksAndUnpacksBitForBit) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t width : {512, 128, 9}) {
      for (const std::int64_t pad : {0, 8, 1}) {
        const std::int64_t rows = 7, heads = 5;
        SCOPED_TRACE(std::to_string(ranks) + " ranks, width " + std::to_string(width));
        Numbers numbers(12);
        const Tensor partial =
            random_tensor(DType::kBF16, {rows, ranks * heads, width}, "partial", numbers, 0.5F);
        const Tensor lse =
            random_tensor(DType::kF32, {rows, ranks * heads}, "lse", numbers, 1.0F, 20.0F);
        lse.as<std::uint32_t>()[0] = 0xFFC12345U;  // a NaN with a payload
        const Tensor packed = host_tensor(DType::kBF16, {ranks, rows, heads, width + 2}, "packed");
        cpu_.combine.pack(packed, partial, lse, kHostStream);
        const Tensor got = poisoned(DType::kBF16, packed.shape(), "packed");
        Tensor storage;
        ops.combine.pack(got, strided(partial, storage, pad), upload(lse), stream());
        expect_same_bytes("packed", download(got), packed);
        const Tensor partials = poisoned(DType::kBF16, {ranks, rows, heads, width}, "partials");
        const Tensor lses = poisoned(DType::kF32, {ranks, rows, heads}, "lses");
        ops.combine.unpack(partials, lses, got, stream());
        expect_same_bytes("partials", download(partials),
                          partial.view().split(1, ranks).transposed(0, 1));
        expect_same_bytes("lses", download(lses), lse.view().split(1, ranks).transposed(0, 1));
      }
    }
  }
}

TEST_F(CombineOpsTest, RoundsToNearestEven) {
  CudaOps& ops = ops_of_rank(0);
  Numbers numbers(2);
  for (const Shape& shape : {Shape{3, 5, 512}, Shape{1, 1, 3}}) {
    const Tensor value = random_tensor(DType::kF32, shape, "value", numbers, 0.1F);
    const Tensor wanted = host_tensor(DType::kBF16, shape, "out");
    cpu_.combine.round_to(wanted, value, kHostStream);
    const Tensor got = poisoned(DType::kBF16, shape, "out");
    ops.combine.round_to(got, upload(value), stream());
    expect_same_bytes("out", download(got), wanted);
  }
}

}  // namespace
}  // namespace mladcp
