#include "kernels/device/row_access.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

bool allows(const TensorView& view, std::int64_t elements) {
  const int last = view.rank() - 1;
  const std::int64_t access_bytes =
      std::min<std::int64_t>(16, elements * static_cast<std::int64_t>(size_bytes(view.dtype)));
  if (view.elements() == 0) return true;
  if (reinterpret_cast<std::uintptr_t>(view.data) % access_bytes != 0) return false;
  if (view.shape[last] > 1 && view.strides[last] != 1) return false;
  for (int dim = 0; dim < last; ++dim) {
    if (view.shape[dim] > 1 && view.strides[dim] % elements != 0) return false;
  }
  return true;
}

}  // namespace

bool rows_allow_vectors(std::initializer_list<TensorView> views, std::int64_t elements) {
  return std::all_of(views.begin(), views.end(),
                     [elements](const TensorView& view) { return allows(view, elements); });
}

void expect_aligned_rows(const TensorView& view, std::int64_t elements, const char* user) {
  if (allows(view, elements)) return;
  throw Unsupported(std::string(user) + ": tensor " + describe(view) + " with strides " +
                    to_string(view.strides) + " at address " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(view.data)) +
                    " must have dense rows that start at multiples of " + std::to_string(elements) +
                    " elements; copy it into a fresh tensor first");
}

}  // namespace mladcp
