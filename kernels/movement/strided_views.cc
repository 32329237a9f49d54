#include "kernels/movement/strided_views.h"

#include <algorithm>

namespace mladcp {
namespace {

bool all_merge(std::span<const TensorView> views, int dim) {
  return std::all_of(views.begin(), views.end(), [dim](const TensorView& view) {
    return view.strides[dim] == view.shape[dim + 1] * view.strides[dim + 1];
  });
}

void erase_dim(TensorView& view, int dim) {
  view.shape.erase(dim);
  view.strides.erase(dim);
}

}  // namespace

void collapse_dims(std::span<TensorView> views) {
  for (int dim = views[0].rank() - 1; dim >= 0; --dim) {
    if (views[0].shape[dim] != 1 || views[0].rank() == 1) continue;
    for (TensorView& view : views) erase_dim(view, dim);
  }
  for (int dim = views[0].rank() - 2; dim >= 0; --dim) {
    if (!all_merge(views, dim)) continue;
    for (TensorView& view : views) view = view.merged(dim);
  }
  if (views[0].rank() != 0) return;
  for (TensorView& view : views) {
    view.shape.push_back(1);
    view.strides.push_back(1);
  }
}

bool allows_vectors(std::span<const TensorView> views, std::int64_t elements) {
  return std::all_of(views.begin(), views.end(), [elements](const TensorView& view) {
    const int last = view.rank() - 1;
    const auto access_bytes =
        std::min<std::int64_t>(16, elements * static_cast<std::int64_t>(size_bytes(view.dtype)));
    if (reinterpret_cast<std::uintptr_t>(view.data) % access_bytes != 0) return false;
    if (view.shape[last] % elements != 0) return false;
    if (elements > 1 && view.strides[last] != 1) return false;
    for (int dim = 0; dim < last; ++dim) {
      if (view.strides[dim] % elements != 0) return false;
    }
    return true;
  });
}

}  // namespace mladcp
