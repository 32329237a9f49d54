// Operations whose kernels come up while the kernel before them runs: each must wait for what that
// writes. Here it lets them start at once and writes their inputs 50 us later.
#include <functional>
#include <vector>

#include "tests/kernels/gpu_test.h"
#include "tests/kernels/late_copies.h"

namespace mladcp {
namespace {

class DependentLaunchTest : public GpuTest {
 protected:
  // enqueue() gives the same results whether its inputs, dense and of a multiple of 4 bytes, were
  // there before or arrive late. Results that are inputs as well are changed in place.
  void expect_waits(const char* what, const std::vector<TensorView>& inputs,
                    const std::vector<TensorView>& results, const std::function<void()>& enqueue) {
    SCOPED_TRACE(what);
    std::vector<Tensor> saved;
    for (const TensorView& input : inputs) {
      saved.push_back(poisoned(input.dtype, input.shape, "saved"));
      device().copy_strided(saved.back(), input, stream());
    }
    enqueue();
    std::vector<Tensor> wanted;
    for (const TensorView& result : results) wanted.push_back(download(result));

    std::vector<LateCopy> copies;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      poison_again(inputs[i]);
      copies.push_back(
          {inputs[i].data, saved[i].view().data, static_cast<std::size_t>(inputs[i].bytes())});
    }
    for (const TensorView& result : results) poison_again(result);
    device().synchronize(stream());
    launch_late_copies(copies, static_cast<cudaStream_t>(stream().handle));
    enqueue();
    for (std::size_t i = 0; i < results.size(); ++i) {
      expect_same_bytes(what, download(results[i]), wanted[i]);
    }
  }

  Tensor random(DType dtype, const Shape& shape, const char* name) {
    return upload(random_tensor(dtype, shape, name, numbers_));
  }

 private:
  void poison_again(const TensorView& view) {
    device().fill_bytes(view.data, 0xFF, static_cast<std::size_t>(view.bytes()), stream());
  }

  Numbers numbers_{17};
};

TEST_F(DependentLaunchTest, ConcatOfFewAndOfManyRows) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t rows : {2, 1401}) {
    const Tensor latent = random(DType::kBF16, {rows, 4, 512}, "latent");
    const Tensor rope = random(DType::kBF16, {rows, 4, 64}, "rope");
    const Tensor joined = poisoned(DType::kBF16, {rows, 4, 576}, "joined");
    const Tensor codes = poisoned(DType::kE4M3, {rows, 4, 576}, "codes");
    expect_waits("concat", {latent, rope}, {joined},
                 [&] { ops.query.concat(joined, latent, rope, stream()); });
    expect_waits("concat_quantize", {latent, rope}, {codes},
                 [&] { ops.query.concat_quantize(codes, latent, rope, 0.5F, stream()); });
  }
}

TEST_F(DependentLaunchTest, SchedulesOfFewAndOfManyRequests) {
  CudaOps& ops = ops_of_rank(0);
  const ScheduleShape shape{128, 1};
  for (const std::int64_t requests : {3, 4000}) {
    std::vector<std::int32_t> lens;
    for (std::int64_t b = 0; b < requests; ++b) {
      lens.push_back(static_cast<std::int32_t>(b * 7919 % 9001));
    }
    const Tensor lengths = upload(index_tensor(lens, "lengths"));
    const Tensor parts =
        poisoned(DType::kI32, {ops.attention.num_parts(shape), kPartFields}, "parts");
    const Tensor num_splits = poisoned(DType::kI32, {requests + 1}, "num_splits");
    expect_waits("build_schedule", {lengths}, {parts, num_splits}, [&] {
      ops.attention.build_schedule({parts, num_splits}, lengths, shape, stream());
    });
  }
}

TEST_F(DependentLaunchTest, MaskAndCorrection) {
  CudaOps& ops = ops_of_rank(0);
  const std::int64_t rows = 64, heads = 16;
  std::vector<std::int32_t> seen(rows, 5);
  seen[3] = seen[40] = 0;
  const Tensor visible = upload(index_tensor(seen, "visible"));
  const Tensor out = random(DType::kBF16, {rows, heads, 512}, "out");
  const Tensor lse = random(DType::kF32, {rows, heads}, "lse");
  expect_waits("mask_empty", {visible, out, lse}, {out, lse},
               [&] { ops.combine.mask_empty(out, lse, visible, stream()); });

  const Tensor lses = random(DType::kF32, {4, rows, heads}, "lses");
  const Tensor partial = random(DType::kBF16, {rows, heads, 512}, "partial");
  const Tensor corrected = poisoned(DType::kBF16, {rows, heads, 512}, "corrected");
  expect_waits("correct", {lses, partial}, {corrected},
               [&] { ops.combine.correct(corrected, partial, lses, 2, stream()); });
}

}  // namespace
}  // namespace mladcp
