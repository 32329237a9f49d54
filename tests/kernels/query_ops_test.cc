// Query operations on the GPU against the host: joined and quantised rows bit for bit, products
// within their bound.
#include <bit>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "reference/cpu_ops.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {
namespace {

class QueryOpsTest : public GpuTest {
 protected:
  CpuOps cpu_{8};
};

// fp32 accumulation of `depth` products on tensor cores (2^-23 each), then one rounding to the
// result's format.
void expect_products(const TensorView& got, const TensorView& wanted,
                     const std::vector<double>& magnitude, std::int64_t depth) {
  const std::vector<float> a = values_of(got);
  const std::vector<float> b = values_of(wanted);
  const double rounding = got.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double bound =
        2 * rounding * std::abs(b[i]) + 0x1p-23 * static_cast<double>(depth) * magnitude[i];
    ASSERT_LE(std::abs(double{a[i]} - b[i]), bound)
        << describe(got) << " element " << i << " got " << a[i] << ", wanted " << b[i];
  }
}

// sum over x of |in[t, h, x] * weight[h, x, y]|
std::vector<double> magnitudes(const TensorView& in, const TensorView& weight) {
  const std::vector<float> a = values_of(in);
  const std::vector<float> w = values_of(weight);
  const std::int64_t rows = in.size(0), heads = in.size(1), depth = in.size(2),
                     columns = weight.size(2);
  std::vector<double> sums(static_cast<std::size_t>(rows * heads * columns), 0.0);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t x = 0; x < depth; ++x) {
        const double value = std::abs(a[(t * heads + h) * depth + x]);
        for (std::int64_t y = 0; y < columns; ++y) {
          sums[(t * heads + h) * columns + y] += value * std::abs(w[(h * depth + x) * columns + y]);
        }
      }
    }
  }
  return sums;
}

// FP8 conversion corners of bf16 inputs in every row.
Tensor corner_rows(const Shape& shape, const char* name) {
  Numbers numbers(11);
  Tensor tensor = random_tensor(DType::kBF16, shape, name, numbers, 0.5F, 30.0F);
  const std::vector<std::uint16_t> corners = {0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x8000,
                                              0x43E0, 0x43E8, 0x3B00, 0x3A80, 0x0001,
                                              0x7F7F, 0x3F88, 0x3F97};
  auto* bits = tensor.as<std::uint16_t>();
  for (std::int64_t i = 0; i < tensor.view().elements(); ++i) {
    if (i % 5 == 0) bits[i] = corners[static_cast<std::size_t>(i / 5) % corners.size()];
  }
  return tensor;
}

struct Widths {
  std::int64_t rows, heads, latent, rope, pad;
};

TEST_F(QueryOpsTest, JoinAndQuantiseRowsBitForBit) {
  CudaOps& ops = ops_of_rank(0);
  for (const Widths& w :
       {Widths{3, 16, 512, 64, 0}, Widths{5, 1, 512, 64, 8}, Widths{2, 7, 512, 64, 3},
        Widths{3, 5, 24, 8, 0}, Widths{3, 5, 13, 7, 1}, Widths{0, 4, 512, 64, 0},
        // many rows, which go by tiles
        Widths{1401, 3, 512, 64, 0}, Widths{1401, 3, 24, 8, 0}, Widths{1401, 3, 13, 7, 1}}) {
    for (const float scale : {1.0F, 2.0F, 0.1F, 3.0F, std::bit_cast<float>(0x3DCCCCCDU)}) {
      SCOPED_TRACE(std::to_string(w.latent) + " + " + std::to_string(w.rope) + " scale " +
                   std::to_string(scale));
      const Tensor latent = corner_rows({w.rows, w.heads, w.latent}, "latent");
      const Tensor rope = corner_rows({w.rows, w.heads, w.rope}, "rope");
      Tensor latent_storage, rope_storage;
      const TensorView latent_view = strided(latent, latent_storage, w.pad);
      const TensorView rope_view = strided(rope, rope_storage, w.pad);
      const Shape shape = {w.rows, w.heads, w.latent + w.rope};
      for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
        const Tensor wanted = host_tensor(dtype, shape, "query");
        const Tensor got = poisoned(dtype, shape, "query");
        if (dtype == DType::kBF16) {
          cpu_.query.concat(wanted, latent, rope, kHostStream);
          ops.query.concat(got, latent_view, rope_view, stream());
        } else {
          cpu_.query.concat_quantize(wanted, latent, rope, scale, kHostStream);
          ops.query.concat_quantize(got, latent_view, rope_view, scale, stream());
        }
        expect_same_bytes("query", download(got), wanted);
      }
    }
  }
}

// Every bf16 value under scales that make ties and near ties.
TEST_F(QueryOpsTest, QuantisesEveryBf16ValueAsTheHostDoes) {
  CudaOps& ops = ops_of_rank(0);
  Tensor latent = host_tensor(DType::kBF16, {128, 1, 512}, "latent");
  for (std::int64_t i = 0; i < 65536; ++i)
    latent.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
  const Tensor rope = corner_rows({128, 1, 64}, "rope");
  const Tensor latent_device = upload(latent);
  const Tensor rope_device = upload(rope);
  Numbers numbers(3);
  for (int i = 0; i < 40; ++i) {
    const float scale =
        i == 0 ? 1.0F
               : std::ldexp(0.5F + static_cast<float>(numbers.integer(0, 1 << 23)) * 0x1p-24F,
                            static_cast<int>(numbers.integer(-20, 10)));
    const Tensor wanted = host_tensor(DType::kE4M3, {128, 1, 576}, "query");
    cpu_.query.concat_quantize(wanted, latent, rope, scale, kHostStream);
    const Tensor got = poisoned(DType::kE4M3, {128, 1, 576}, "query");
    ops.query.concat_quantize(got, latent_device, rope_device, scale, stream());
    SCOPED_TRACE(scale);
    expect_same_bytes("query", download(got), wanted);
  }
}

TEST_F(QueryOpsTest, ProductsOfHeads) {
  CudaOps& ops = ops_of_rank(0);
  struct Case {
    std::int64_t rows, heads, depth, columns, pad;
  };
  for (const Case& c : {Case{3, 16, 128, 512, 0}, Case{1, 1, 128, 512, 8}, Case{7, 5, 24, 40, 0},
                        Case{64, 3, 128, 512, 8}, Case{0, 4, 128, 512, 0}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows " + std::to_string(c.heads) + " heads");
    Numbers numbers(5);
    const Tensor in =
        random_tensor(DType::kBF16, {c.rows, c.heads, c.depth}, "q_nope", numbers, 0.2F);
    const Tensor w =
        random_tensor(DType::kBF16, {c.heads, c.depth, c.columns}, "w_uk", numbers, 0.02F, 0.1F);
    Tensor storage;
    const TensorView in_view = strided(in, storage, c.pad);
    const Tensor w_device = upload(w);
    const Shape shape = {c.rows, c.heads, c.columns};
    const Tensor wanted = host_tensor(DType::kBF16, shape, "absorbed");
    const Tensor got = poisoned(DType::kBF16, shape, "absorbed");
    cpu_.query.absorb(wanted, in, w, kHostStream);
    ops.query.absorb(got, in_view, w_device, stream());
    expect_products(download(got), wanted, magnitudes(in, w), c.depth);
  }
}

TEST_F(QueryOpsTest, ValueProjectionsOfEveryFormat) {
  CudaOps& ops = ops_of_rank(0);
  Numbers numbers(6);
  for (const auto& [rows, heads, latent, value] :
       {std::array<std::int64_t, 4>{5, 3, 512, 128}, {33, 16, 512, 128}, {4, 3, 21, 11}}) {
    const Tensor w =
        random_tensor(DType::kBF16, {heads, latent, value}, "w_uv", numbers, 0.02F, 0.1F);
    const Tensor w_device = upload(w);
    for (const DType in : {DType::kBF16, DType::kF32}) {
      // cuBLAS wants 16-byte rows of bf16; the odd widths are the fp32 kernel's.
      if (in == DType::kBF16 && latent % 8 != 0) continue;
      const Tensor x = random_tensor(in, {rows, heads, latent}, "latent", numbers, 0.3F);
      const Tensor x_device = upload(x);
      for (const DType out : {DType::kBF16, DType::kF32}) {
        SCOPED_TRACE(std::string(name(in)) + " to " + std::string(name(out)));
        const Tensor wanted = host_tensor(out, {rows, heads, value}, "value");
        const Tensor got = poisoned(out, {rows, heads, value}, "value");
        cpu_.query.project_value(wanted, x, w, kHostStream);
        ops.query.project_value(got, x_device, w_device, stream());
        expect_products(download(got), wanted, magnitudes(x, w), latent);
      }
    }
  }
}

TEST_F(QueryOpsTest, KeysAndValuesOfContextRows) {
  CudaOps& ops = ops_of_rank(0);
  Numbers numbers(8);
  for (const std::int64_t count : {1, 7, 130, 0}) {
    const std::int64_t heads = 3;
    const Tensor rows = random_tensor(DType::kBF16, {count, 576}, "rows", numbers, 0.3F);
    const Tensor w_uk =
        random_tensor(DType::kBF16, {heads, 128, 512}, "w_uk", numbers, 0.01F, 0.1F);
    const Tensor w_uv =
        random_tensor(DType::kBF16, {heads, 512, 128}, "w_uv", numbers, 0.01F, 0.1F);
    const Tensor key = host_tensor(DType::kBF16, {count, heads, 192}, "key");
    const Tensor value = host_tensor(DType::kBF16, {count, heads, 128}, "value");
    cpu_.query.project_keys_values(key, value, rows, w_uk, w_uv, kHostStream);
    const Tensor got_key = poisoned(DType::kBF16, {count, heads, 192}, "key");
    const Tensor got_value = poisoned(DType::kBF16, {count, heads, 128}, "value");
    ops.query.project_keys_values(got_key, got_value, upload(rows), upload(w_uk), upload(w_uv),
                                  stream());
    // The RoPE part only moves.
    expect_same_bytes("rope", download(got_key.view().narrow(2, 128, 64)),
                      key.view().narrow(2, 128, 64));
    Tensor shared = host_tensor(DType::kBF16, {count, heads, 512}, "latents");
    for (std::int64_t h = 0; h < heads; ++h) {
      host_device().copy_strided(shared.view().select(1, h), rows.view().narrow(1, 0, 512),
                                 kHostStream);
    }
    const Tensor w_uk_turned = copied_to_host(w_uk.view().transposed(1, 2), kHostStream);
    expect_products(download(got_key.view().narrow(2, 0, 128)), key.view().narrow(2, 0, 128),
                    magnitudes(shared, w_uk_turned), 512);
    expect_products(download(got_value), value, magnitudes(shared, w_uv), 512);
  }
}

TEST_F(QueryOpsTest, RefusesByName) {
  CudaOps& ops = ops_of_rank(0);
  const Tensor latent(device(), DType::kBF16, {3, 2, 512}, "latent");
  const Tensor rope(device(), DType::kBF16, {3, 2, 64}, "rope");
  const Tensor out(device(), DType::kE4M3, {3, 2, 576}, "query");
  const Tensor host = host_tensor(DType::kBF16, {3, 2, 512}, "host latent");
  const auto message = [&](const TensorView& l) {
    try {
      ops.query.concat_quantize(out, l, rope, 1.0F, stream());
      return std::string("nothing was refused");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(message(host).find("host latent"), std::string::npos) << message(host);
  EXPECT_NE(message(latent.view().narrow(2, 0, 500)).find("query"), std::string::npos);
  EXPECT_NE(message(latent.view().viewed_as(DType::kBF16).transposed(0, 1)).find("rope"),
            std::string::npos);
}

}  // namespace
}  // namespace mladcp
