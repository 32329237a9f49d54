// Tensors: a non-owning view that knows its device and its name, and an owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace mladcp {

class Device;
struct Stream;

// Up to five extents or strides; a value type without allocation.
class Extents {
 public:
  static constexpr int kMaxRank = 5;

  Extents() = default;
  Extents(std::initializer_list<std::int64_t> values);  // InvalidArgument above kMaxRank

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return values_[dim]; }
  std::int64_t& operator[](int dim) { return values_[dim]; }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + rank_; }

  void push_back(std::int64_t value);
  void insert(int dim, std::int64_t value);
  void erase(int dim);

  friend bool operator==(const Extents& a, const Extents& b);

 private:
  std::int64_t values_[kMaxRank] = {};
  int rank_ = 0;
};

using Shape = Extents;
using Strides = Extents;

std::int64_t element_count(const Shape& shape);
Strides contiguous_strides(const Shape& shape);
std::string to_string(const Extents& extents);  // "[3, 4, 2]"

// A view of memory on `device`. Constness is the callee's contract: outputs come first in every
// signature, inputs are never written. `name` is a string literal used in messages.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Strides strides;  // in elements; never negative
  Device* device = nullptr;
  const char* name = "tensor";

  int rank() const { return shape.rank(); }
  std::int64_t size(int dim) const { return shape[dim]; }
  std::int64_t elements() const { return element_count(shape); }
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_bytes(dtype)); }
  bool is_contiguous() const;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // Views of the same memory. Bounds are checked: InvalidArgument names the tensor.
  TensorView narrow(int dim, std::int64_t begin, std::int64_t length) const;
  TensorView select(int dim, std::int64_t index) const;  // drops `dim`
  TensorView transposed(int dim_a, int dim_b) const;
  TensorView split(int dim, std::int64_t outer) const;  // n -> [outer, n / outer]
  TensorView merged(int dim) const;                     // dims dim, dim+1 -> one
  TensorView reshaped(const Shape& new_shape) const;    // contiguous views only
  TensorView viewed_as(DType other) const;              // same element size only
  TensorView renamed(const char* new_name) const;
};

std::string describe(const TensorView& view);  // "query e4m3 [3, 4, 576]"

// Checks that name the tensor; all throw InvalidArgument.
void expect_shape(const TensorView& view, const Shape& shape);
void expect_dtype(const TensorView& view, DType dtype);
void expect(const TensorView& view, DType dtype, const Shape& shape);
void expect_contiguous(const TensorView& view);
void expect_unit_last_stride(const TensorView& view);
int normalized_dim(const TensorView& view, int dim);  // -1 is the last axis

// Owns its memory; contiguous, row-major. Move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Device& device, DType dtype, const Shape& shape, const char* name);
  ~Tensor();
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor)
  bool empty() const { return view_.data == nullptr; }

  template <typename T>
  T* as() const {
    return view_.as<T>();
  }
  const Shape& shape() const { return view_.shape; }

 private:
  void release() noexcept;

  TensorView view_;
};

// A contiguous copy in host memory; waits for `stream` when the source is on another device.
Tensor copied_to_host(const TensorView& source, Stream stream);
// A contiguous copy of a host tensor on `device`, complete on return.
Tensor copied_to_device(const TensorView& host_source, Device& device, Stream stream);

}  // namespace mladcp
