#include "core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor iota(const Shape& shape) {
  Tensor tensor(host_device(), DType::kI32, shape, "iota");
  std::iota(tensor.as<std::int32_t>(), tensor.as<std::int32_t>() + tensor.view().elements(), 0);
  return tensor;
}

std::vector<std::int32_t> values(const TensorView& view) {
  const Tensor dense = copied_to_host(view, Stream{});
  return {dense.as<std::int32_t>(), dense.as<std::int32_t>() + view.elements()};
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

TEST(Extents, AreValues) {
  Shape shape = {3, 4};
  EXPECT_EQ(shape.rank(), 2);
  shape.push_back(2);
  shape.insert(0, 7);
  EXPECT_EQ(to_string(shape), "[7, 3, 4, 2]");
  shape.erase(1);
  EXPECT_EQ(shape, (Shape{7, 4, 2}));
  EXPECT_NE(shape, (Shape{7, 4}));
  EXPECT_NE((Shape{7, 4}), (Shape{7, 4, 0}));
  EXPECT_EQ(element_count(shape), 56);
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 0, 5}), 0);
  EXPECT_EQ(contiguous_strides({2, 3, 5}), (Strides{15, 5, 1}));
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_THAT(refusal([] { Shape{1, 2, 3, 4, 5, 6}; }), HasSubstr("at most 5 dims"));
}

TEST(TensorView, NarrowSelectTransposeKeepTheRightElements) {
  const Tensor tensor = iota({2, 3, 4});
  const TensorView& view = tensor;
  EXPECT_THAT(values(view.narrow(1, 1, 2).narrow(2, 3, 1)), ElementsAre(7, 11, 19, 23));
  EXPECT_THAT(values(view.select(1, 2)), ElementsAre(8, 9, 10, 11, 20, 21, 22, 23));
  EXPECT_THAT(values(view.select(0, 1).transposed(0, 1)),
              ElementsAre(12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23));
  EXPECT_THAT(values(view.split(2, 2).select(2, 1).narrow(1, 0, 1)), ElementsAre(2, 3, 14, 15));
  EXPECT_EQ(view.narrow(0, 2, 0).elements(), 0);
}

// Its data stays null: a pointer moved away from null is undefined, and not empty any more.
TEST(TensorView, ViewsOfATensorWithoutMemoryHaveNone) {
  const Tensor tensor(host_device(), DType::kF32, {0, 3, 4}, "empty");
  ASSERT_EQ(tensor.view().data, nullptr);
  EXPECT_EQ(tensor.view().narrow(1, 2, 1).data, nullptr);
  EXPECT_EQ(tensor.view().select(2, 3).data, nullptr);
}

TEST(TensorView, MergedUndoesSplit) {
  const Tensor tensor = iota({2, 6, 2});
  const TensorView split = tensor.view().split(1, 3);
  EXPECT_EQ(split.shape, (Shape{2, 3, 2, 2}));
  EXPECT_EQ(split.merged(1).shape, tensor.shape());
  EXPECT_EQ(split.merged(1).strides, tensor.view().strides);
  EXPECT_THAT(refusal([&] { split.transposed(1, 2).merged(1); }),
              HasSubstr("do not lie behind each other"));
}

TEST(TensorView, KnowsWhetherItIsContiguous) {
  const Tensor tensor = iota({2, 3, 4});
  const TensorView& view = tensor;
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_TRUE(view.narrow(0, 1, 1).is_contiguous());
  EXPECT_FALSE(view.narrow(1, 0, 2).is_contiguous());
  EXPECT_FALSE(view.transposed(0, 1).is_contiguous());
  EXPECT_TRUE(view.narrow(1, 0, 0).is_contiguous()) << "no elements";
  const Tensor thin = iota({3, 1, 4});
  EXPECT_TRUE(thin.view().transposed(0, 1).is_contiguous()) << "extent 1 has no stride";
}

TEST(TensorView, RefusalsNameTheTensor) {
  const Tensor tensor = iota({2, 3});
  const TensorView& view = tensor;
  EXPECT_EQ(refusal([&] { view.narrow(1, 2, 2); }),
            "tensor iota int32 [2, 3]: narrow of dim 1 to [2, 4) leaves the tensor");
  EXPECT_THAT(refusal([&] { view.narrow(1, -1, 2); }), HasSubstr("leaves the tensor"));
  EXPECT_THAT(refusal([&] { view.narrow(1, 1, -1); }), HasSubstr("leaves the tensor"));
  EXPECT_THAT(refusal([&] { view.select(0, 2); }), HasSubstr("leaves the tensor"));
  EXPECT_THAT(refusal([&] { view.select(2, 0); }), HasSubstr("no dim 2"));
  EXPECT_THAT(refusal([&] { view.transposed(0, -1); }), HasSubstr("no dim -1"));
  EXPECT_THAT(refusal([&] { view.split(1, 2); }), HasSubstr("does not split into 2"));
  EXPECT_THAT(refusal([&] { view.split(1, 0); }), HasSubstr("does not split into 0"));
  EXPECT_THAT(refusal([&] { view.reshaped({5}); }), HasSubstr("no view of shape [5]"));
  EXPECT_THAT(refusal([&] { view.transposed(0, 1).reshaped({6}); }), HasSubstr("not contiguous"));
  EXPECT_THAT(refusal([&] { view.viewed_as(DType::kBF16); }), HasSubstr("no view as bf16"));
}

TEST(TensorView, ReshapedAndViewedAsShareTheMemory) {
  const Tensor tensor = iota({2, 6});
  const TensorView view = tensor.view().reshaped({3, 4}).viewed_as(DType::kF32).renamed("other");
  EXPECT_EQ(view.data, tensor.view().data);
  EXPECT_EQ(describe(view), "other fp32 [3, 4]");
  EXPECT_EQ(view.bytes(), 48);
}

TEST(TensorChecks, PassOrNameTensorGotAndExpected) {
  const Tensor tensor = iota({2, 3});
  const TensorView& view = tensor;
  EXPECT_NO_THROW(expect(view, DType::kI32, {2, 3}));
  EXPECT_EQ(refusal([&] {
              expect(view, DType::kI32, {3, 2});
            }),
            "tensor iota int32 [2, 3]: expected shape [3, 2]");
  EXPECT_EQ(refusal([&] { expect_dtype(view, DType::kF32); }),
            "tensor iota int32 [2, 3]: expected dtype fp32");
  EXPECT_NO_THROW(expect_unit_last_stride(view.narrow(0, 0, 1)));
  EXPECT_NO_THROW(expect_unit_last_stride(view.transposed(0, 1).narrow(1, 0, 1)));
  EXPECT_THAT(refusal([&] { expect_unit_last_stride(view.transposed(0, 1)); }),
              HasSubstr("strides [1, 3] must end in 1"));
  EXPECT_THAT(refusal([&] { expect_contiguous(view.narrow(1, 0, 2)); }),
              HasSubstr("strides [3, 1] are not contiguous"));
  EXPECT_EQ(normalized_dim(view, -1), 1);
  EXPECT_EQ(normalized_dim(view, 0), 0);
  EXPECT_THAT(refusal([&] { normalized_dim(view, -3); }), HasSubstr("no dim -1"));
}

TEST(Tensor, MovesItsMemory) {
  Tensor first = iota({4});
  const void* memory = first.view().data;
  Tensor second = std::move(first);
  EXPECT_EQ(second.view().data, memory);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): the moved-from state is defined
  first = std::move(second);
  EXPECT_EQ(first.view().data, memory);
  EXPECT_THAT(values(first), ElementsAre(0, 1, 2, 3));
}

TEST(Tensor, RefusesNegativeExtents) {
  EXPECT_EQ(refusal([] {
              Tensor(host_device(), DType::kBF16, {3, -1}, "cache");
            }),
            "tensor cache bf16 [3, -1]: negative extent");
}

TEST(Tensor, CopiesAreContiguousAndComplete) {
  const Tensor tensor = iota({2, 3});
  const Tensor copy = copied_to_device(tensor.view().transposed(0, 1), host_device(), Stream{});
  EXPECT_TRUE(copy.view().is_contiguous());
  EXPECT_EQ(copy.shape(), (Shape{3, 2}));
  EXPECT_THAT(values(copy), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(copied_to_host(iota({0, 3}), Stream{}).shape(), (Shape{0, 3}));
}

}  // namespace
}  // namespace mladcp
