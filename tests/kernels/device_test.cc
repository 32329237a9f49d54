// The CUDA device against the host device: copies and sums move the same bits.
#include <vector>

#include "core/error.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {
namespace {

using DeviceTest = GpuTest;

TEST_F(DeviceTest, DescribesItself) {
  EXPECT_EQ(device().kind(), DeviceKind::kCuda);
  EXPECT_EQ(device().description().substr(0, 6), "cuda:0");
  EXPECT_GE(device().properties().compute_capability, 80);
  EXPECT_GT(device().properties().multiprocessors, 0);
}

TEST_F(DeviceTest, RefusesADeviceThatDoesNotExistByName) {
  try {
    CudaDevice missing(4711);
    FAIL() << "cuda:4711 exists";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:4711"), std::string::npos) << error.what();
  }
}

TEST_F(DeviceTest, ShortMemoryNamesTheBytes) {
  const std::size_t bytes = std::size_t{1} << 50;
  try {
    device().allocate(bytes);
    FAIL() << "a card with a pebibyte";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(expect_free_memory(device(), bytes, "a test"), CudaError);
  EXPECT_NO_THROW(expect_free_memory(device(), 1, "a test"));
  // The refusal leaves nothing behind.
  Tensor tensor(device(), DType::kF32, {3}, "small");
  device().fill_bytes(tensor.view().data, 0, 12, stream());
  EXPECT_EQ(values_of(download(tensor)), (std::vector<float>{0, 0, 0}));
}

TEST_F(DeviceTest, RefusesTheLegacyStream) {
  Tensor tensor(device(), DType::kF32, {3}, "small");
  EXPECT_THROW(device().fill_bytes(tensor.view().data, 0, 12, Stream{}), InvalidArgument);
}

TEST_F(DeviceTest, OrdersStreamsByEvents) {
  const Stream other = device().create_stream();
  const Event ready = device().create_event();
  const std::int64_t elements = std::int64_t{1} << 24;
  Tensor source(device(), DType::kF32, {elements}, "source");
  Tensor copy(device(), DType::kF32, {elements}, "copy");
  const auto bytes = static_cast<std::size_t>(source.view().bytes());
  for (unsigned char value = 1; value < 20; ++value) {
    device().fill_bytes(source.view().data, value, bytes, stream());
    device().record(ready, stream());
    device().wait(other, ready);
    device().copy(copy.view().data, source.view().data, bytes, other);
    device().record(ready, other);
    device().wait(stream(), ready);
    unsigned char last = 0;
    device().copy_to_host(&last, static_cast<unsigned char*>(copy.view().data) + bytes - 1, 1,
                          other);
    ASSERT_EQ(last, value);
  }
  device().destroy_event(ready);
  device().destroy_stream(other);
}

struct Move {
  Shape shape;
  int dim_a, dim_b;
};

// Every element size, odd and even extents, every pair of axes: copies in both directions.
TEST_F(DeviceTest, CopiesBetweenAnyStrides) {
  const std::vector<Move> moves = {{{1}, 0, 0},
                                   {{7, 5}, 0, 1},
                                   {{3, 4, 48}, 0, 1},
                                   {{3, 5, 7}, 0, 2},
                                   {{2, 8, 3, 576}, 0, 1},
                                   {{2, 3, 4, 5, 6}, 1, 3},
                                   {{4, 3, 16, 514}, 0, 1},
                                   {{0, 3}, 0, 1},
                                   {{5, 1, 64}, 0, 1}};
  for (const DType dtype : {DType::kBytes, DType::kBF16, DType::kF32, DType::kI64}) {
    for (const Move& move : moves) {
      for (const std::int64_t pad : {0, 1, 8, 16}) {
        SCOPED_TRACE(std::string(name(dtype)) + " " + to_string(move.shape) + " pad " +
                     std::to_string(pad));
        Tensor host = host_tensor(dtype, move.shape, "source");
        Numbers numbers(1);
        for (std::int64_t i = 0; i < host.view().bytes(); ++i) {
          host.as<unsigned char>()[i] = static_cast<unsigned char>(numbers.integer(0, 255));
        }
        const TensorView turned = host.view().transposed(move.dim_a, move.dim_b);
        const Tensor dense_turned = copied_to_host(turned, kHostStream);
        const Tensor source = upload(host);
        // Into a padded destination, then back into a dense one.
        Shape wide = turned.shape;
        const int last = turned.rank() - 1;
        wide[last] += 2 * pad;
        const Tensor storage = poisoned(dtype, wide, "storage");
        const TensorView apart = storage.view().narrow(last, pad, turned.shape[last]);
        device().copy_strided(apart, source.view().transposed(move.dim_a, move.dim_b), stream());
        expect_same_bytes("moved", download(apart), dense_turned);
        const Tensor back = poisoned(dtype, move.shape, "back");
        device().copy_strided(back.view().transposed(move.dim_a, move.dim_b), apart, stream());
        expect_same_bytes("moved back", download(back), host);
        if (pad > 0 && turned.elements() > 0) {  // the frame is untouched
          for (const unsigned char byte : bytes_of(download(storage.view().narrow(last, 0, pad)))) {
            ASSERT_EQ(byte, 0xFF);
          }
        }
      }
    }
  }
}

TEST_F(DeviceTest, CopyRefusesUnequalShapes) {
  const Tensor a(device(), DType::kF32, {3, 4}, "a");
  const Tensor b(device(), DType::kF32, {4, 3}, "b");
  EXPECT_THROW(device().copy_strided(a, b, stream()), InvalidArgument);
  EXPECT_THROW(device().copy_strided(a, a.view().viewed_as(DType::kI32).narrow(0, 0, 2), stream()),
               InvalidArgument);
}

// out = round(((x0 + x1) + x2) + ..) in fp32, as on the host: order and rounding show in the bits.
TEST_F(DeviceTest, SumsInRankOrder) {
  for (const int ranks : {1, 2, 3, 4, 8, 17}) {
    for (const DType in : {DType::kF32, DType::kBF16}) {
      for (const DType out : {DType::kF32, DType::kBF16}) {
        for (const Shape& shape : {Shape{5}, Shape{3, 4, 512}, Shape{3, 5, 7}, Shape{2, 3, 2, 8}}) {
          SCOPED_TRACE(std::to_string(ranks) + " " + std::string(name(in)) + " " +
                       std::string(name(out)) + " " + to_string(shape));
          Numbers numbers(7);
          std::vector<Tensor> hosts, devices, storages;
          std::vector<TensorView> host_views, device_views;
          for (int r = 0; r < ranks; ++r) {
            hosts.push_back(
                random_tensor(in, shape, "input", numbers, 0.3F, std::ldexp(1.0F, r % 5 * 3)));
            storages.emplace_back();
            device_views.push_back(strided(hosts.back(), storages.back(), r % 2 == 0 ? 0 : 8));
            host_views.push_back(hosts.back());
          }
          const Tensor wanted = host_tensor(out, shape, "sum");
          host_device().sum_in_rank_order(wanted, host_views, kHostStream);
          const Tensor got = poisoned(out, shape, "sum");
          device().sum_in_rank_order(got, device_views, stream());
          expect_same_bytes("sum", download(got), wanted);
        }
      }
    }
  }
}

TEST_F(DeviceTest, SumRefusesCodes) {
  const Tensor codes(device(), DType::kE4M3, {3}, "codes");
  const Tensor out(device(), DType::kF32, {3}, "out");
  const TensorView input = codes;
  EXPECT_THROW(device().sum_in_rank_order(out, std::span(&input, 1), stream()), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
