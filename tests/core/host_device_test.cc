#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Stream kHostStream{};

Tensor floats(const std::vector<float>& numbers, const Shape& shape) {
  Tensor tensor(host_device(), DType::kF32, shape, "floats");
  std::copy(numbers.begin(), numbers.end(), tensor.as<float>());
  return tensor;
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(HostDevice, AllocatesAligned) {
  for (const std::size_t bytes : {1U, 255U, 256U, 257U, 100000U}) {
    void* pointer = host_device().allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 256, 0U);
    std::memset(pointer, 1, bytes);
    host_device().deallocate(pointer);
  }
  host_device().deallocate(host_device().allocate(0));
  EXPECT_EQ(host_device().kind(), DeviceKind::kHost);
  EXPECT_EQ(host_device().description(), "host");
}

TEST(HostDevice, CopiesAndFillsBytes) {
  const char source[] = "latent";
  char destination[8] = {};
  host_device().copy(destination, source, 3, kHostStream);
  EXPECT_STREQ(destination, "lat");
  host_device().fill_bytes(destination, 'x', 2, kHostStream);
  EXPECT_STREQ(destination, "xxt");
  host_device().copy(nullptr, nullptr, 0, kHostStream);
  host_device().fill_bytes(nullptr, 0, 0, kHostStream);
}

// Every permutation of axes and a hole behind every axis, element by element.
TEST(HostDevice, StridedCopyMovesEveryElementAndNothingElse) {
  const Shape shape = {2, 3, 4};
  constexpr std::int32_t kHole = -1;
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int hole = 0; hole < 3; ++hole) {
        SCOPED_TRACE("axes " + std::to_string(a) + " and " + std::to_string(b) + ", hole in " +
                     std::to_string(hole));
        Shape outer = shape;
        outer[hole] += 1;
        std::swap(outer[a], outer[b]);
        const Tensor storage(host_device(), DType::kI32, outer, "storage");
        std::fill_n(storage.as<std::int32_t>(), storage.view().elements(), kHole);
        const TensorView view = storage.view().transposed(a, b).narrow(hole, 1, shape[hole]);
        const Tensor source(host_device(), DType::kI32, shape, "source");
        for (int i = 0; i < 24; ++i) source.as<std::int32_t>()[i] = i;

        host_device().copy_strided(view, source, kHostStream);
        int written = 0;
        for (std::int64_t i = 0; i < storage.view().elements(); ++i) {
          written += storage.as<std::int32_t>()[i] != kHole;
        }
        EXPECT_EQ(written, 24);
        for (int i = 0; i < 24; ++i) {
          const std::int64_t offset =
              i / 12 * view.strides[0] + i / 4 % 3 * view.strides[1] + i % 4 * view.strides[2];
          ASSERT_EQ(view.as<std::int32_t>()[offset], i);
        }
        const Tensor back(host_device(), DType::kI32, shape, "back");
        host_device().copy_strided(back, view, kHostStream);
        EXPECT_EQ(std::memcmp(back.view().data, source.view().data, 96), 0);
      }
    }
  }
}

TEST(HostDevice, StridedCopyKeepsNanPayloadsAndWorksOnBytes) {
  const Tensor source(host_device(), DType::kF32, {3}, "source");
  const std::uint32_t patterns[] = {0x7F800001U, 0xFFC12345U, 0x80000000U};
  std::memcpy(source.view().data, patterns, sizeof patterns);
  const Tensor copy(host_device(), DType::kI32, {3}, "copy");
  host_device().copy_strided(copy, source, kHostStream);
  EXPECT_EQ(std::memcmp(copy.view().data, patterns, sizeof patterns), 0);
}

TEST(HostDevice, StridedCopyRefusesOtherShapesAndElementSizes) {
  const Tensor a(host_device(), DType::kF32, {2, 3}, "a");
  const Tensor b(host_device(), DType::kF32, {3, 2}, "b");
  const Tensor c(host_device(), DType::kBF16, {2, 3}, "c");
  EXPECT_THAT(refusal([&] { host_device().copy_strided(a, b, kHostStream); }),
              HasSubstr("a fp32 [2, 3] and b fp32 [3, 2]: the shapes must be equal"));
  EXPECT_THAT(refusal([&] { host_device().copy_strided(a, c, kHostStream); }),
              HasSubstr("differ in element size"));
}

// 2^24 + 1 - 2^24: the order of the ranks decides whether the 1 survives.
TEST(HostDevice, SumsRunInRankOrderInFp32) {
  const Tensor big = floats({16777216.0F}, {1});
  const Tensor one = floats({1.0F}, {1});
  const Tensor minus_big = floats({-16777216.0F}, {1});
  const Tensor out(host_device(), DType::kF32, {1}, "out");
  const std::vector<TensorView> lost = {big, one, minus_big};
  host_device().sum_in_rank_order(out, lost, kHostStream);
  EXPECT_EQ(out.as<float>()[0], 0.0F);
  const std::vector<TensorView> kept = {big, minus_big, one};
  host_device().sum_in_rank_order(out, kept, kHostStream);
  EXPECT_EQ(out.as<float>()[0], 1.0F);
}

// bf16 has 8 significant bits: 256 + 1 + 1 is 258 when rounded once, 256 when rounded at every
// step.
TEST(HostDevice, Bf16SumsAreRoundedOnce) {
  const auto bf16 = [](float value) {
    Tensor tensor(host_device(), DType::kBF16, {2}, "addend");
    tensor.as<BFloat16>()[0] = BFloat16::from_float(value);
    tensor.as<BFloat16>()[1] = BFloat16::from_float(-value);
    return tensor;
  };
  const Tensor large = bf16(256.0F);
  const Tensor one = bf16(1.0F);
  const std::vector<TensorView> addends = {large, one, one};
  const Tensor out(host_device(), DType::kBF16, {2}, "out");
  host_device().sum_in_rank_order(out, addends, kHostStream);
  EXPECT_EQ(out.as<BFloat16>()[0].to_float(), 258.0F);
  EXPECT_EQ(out.as<BFloat16>()[1].to_float(), -258.0F);
  const Tensor wide(host_device(), DType::kF32, {2}, "wide");
  host_device().sum_in_rank_order(wide, addends, kHostStream);
  EXPECT_EQ(wide.as<float>()[0], 258.0F);
}

// Longer than any internal block, strided on both sides, one input among them.
TEST(HostDevice, SumsEveryElementOnce) {
  for (const std::int64_t columns : {1, 63, 64, 65, 1500}) {
    for (const int ranks : {1, 2, 5}) {
      SCOPED_TRACE(std::to_string(columns) + " columns, " + std::to_string(ranks) + " ranks");
      std::vector<Tensor> storages;
      std::vector<TensorView> inputs;
      for (int s = 0; s < ranks; ++s) {
        storages.emplace_back(host_device(), DType::kF32, Shape{3, columns + 2}, "input");
        for (std::int64_t i = 0; i < 3 * (columns + 2); ++i) {
          storages.back().as<float>()[i] = static_cast<float>((s + 1) * i % 1021);
        }
        inputs.push_back(storages.back().view().narrow(1, 1, columns));
      }
      const Tensor storage(host_device(), DType::kF32, {columns, 3}, "out");
      host_device().sum_in_rank_order(storage.view().transposed(0, 1), inputs, kHostStream);
      for (std::int64_t row = 0; row < 3; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
          float wanted = 0.0F;
          for (int s = 0; s < ranks; ++s) {
            wanted += storages[s].as<float>()[row * (columns + 2) + column + 1];
          }
          ASSERT_EQ(storage.as<float>()[column * 3 + row], wanted) << row << ", " << column;
        }
      }
    }
  }
}

TEST(HostDevice, SumsOfSpecialValuesFollowIeee) {
  const float inf = INFINITY;
  const Tensor a = floats({inf, inf, -0.0F, 1.0F}, {4});
  const Tensor b = floats({-inf, 1.0F, -0.0F, NAN}, {4});
  const Tensor out(host_device(), DType::kF32, {4}, "out");
  const std::vector<TensorView> addends = {a, b};
  host_device().sum_in_rank_order(out, addends, kHostStream);
  EXPECT_TRUE(std::isnan(out.as<float>()[0]));
  EXPECT_EQ(out.as<float>()[1], inf);
  EXPECT_TRUE(std::signbit(out.as<float>()[2]));
  EXPECT_TRUE(std::isnan(out.as<float>()[3]));
}

TEST(HostDevice, SumsRefuseCodesMixturesAndNothing) {
  const Tensor f32(host_device(), DType::kF32, {2}, "f32");
  const Tensor bf16(host_device(), DType::kBF16, {2}, "bf16");
  const Tensor codes(host_device(), DType::kE4M3, {2}, "codes");
  const Tensor longer(host_device(), DType::kF32, {3}, "longer");
  const auto sum = [](const TensorView& out, const std::vector<TensorView>& inputs) {
    return refusal([&] { host_device().sum_in_rank_order(out, inputs, kHostStream); });
  };
  EXPECT_THAT(sum(f32, {}), HasSubstr("sum of no tensors into f32"));
  EXPECT_THAT(sum(f32, {codes}), HasSubstr("codes e4m3 [2]: inputs must all be fp32 or all bf16"));
  EXPECT_THAT(sum(f32, {f32, bf16}), HasSubstr("bf16 bf16 [2]"));
  EXPECT_THAT(sum(codes, {f32}), HasSubstr("sum into codes"));
  EXPECT_THAT(sum(f32, {longer}), HasSubstr("the shapes must be equal"));
}

TEST(HostDevice, StreamsAndEventsCostNothing) {
  Device& device = host_device();
  const Stream stream = device.create_stream();
  const Event event = device.create_event();
  device.record(event, stream);
  device.wait(stream, event);
  device.synchronize(stream);
  device.destroy_event(event);
  device.destroy_stream(stream);
}

}  // namespace
}  // namespace mladcp
