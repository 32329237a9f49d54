// Faults in combining the ranks' partials and in the value up-projection.
#include <cmath>
#include <limits>
#include <utility>

#include "core/bfloat16.h"
#include "core/lse_merge.h"
#include "harness/fault.h"
#include "harness/fault_variations.h"

namespace mladcp {
namespace {

Scenario with_combine(Combine combine) {
  Scenario scenario = fault_scenario();
  scenario.parallel.combine = combine;
  return scenario;
}

// Replaces the weight of stage correct: weight(lses of all ranks at a row and head, own rank).
OpFunctions correct_with(
    std::function<float(const std::vector<float>& lses, int rank, float partial)> corrected) {
  OpFunctions functions;
  functions.correct = [corrected = std::move(corrected)](
                          CombineOps& next, const TensorView& out, const TensorView& partial,
                          const TensorView& lses, int rank, Stream stream) {
    const Tensor in = copied_to_host(partial, stream);
    const Tensor all = copied_to_host(lses, stream);
    next.correct(out, partial, lses, rank, stream);
    const std::int64_t n = lses.size(0);
    const std::int64_t rows = lses.size(1) * lses.size(2);
    const std::int64_t width = out.size(2);
    map_values(out, stream, [&](float, std::int64_t i) {
      std::vector<float> column;
      for (std::int64_t s = 0; s < n; ++s) {
        column.push_back(value_at(all, s * rows + i / width));
      }
      return corrected(column, rank, value_at(in, i));
    });
  };
  return functions;
}

float weight_of(const std::vector<float>& lses, int rank, float base) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float lse : lses) largest = std::max<double>(largest, lse);
  double sum = 0.0;
  for (const float lse : lses) sum += std::pow(base, lse - largest);
  return static_cast<float>(std::pow(base, lses[static_cast<std::size_t>(rank)] - largest) / sum);
}

std::vector<Fault> correct_faults() {
  const auto n_of = [](const std::vector<float>& lses) { return static_cast<float>(lses.size()); };
  std::vector<Fault> faults;
  faults.push_back(op_fault("weights-in-base-two", "exp2 of a natural LSE", "correct",
                            Fault::kEveryRank,
                            correct_with([](const std::vector<float>& lses, int rank, float x) {
                              return weighted(weight_of(lses, rank, 2.0F), x);
                            })));
  faults.push_back(op_fault("weights-of-rank-zero", "every rank uses rank 0's weight", "correct",
                            Fault::kEveryRank,
                            correct_with([](const std::vector<float>& lses, int, float x) {
                              return weighted(weight_of(lses, 0, std::exp(1.0F)), x);
                            })));
  faults.push_back(op_fault("partials-averaged", "1 / N instead of the LSE weights", "correct",
                            Fault::kEveryRank,
                            correct_with([n_of](const std::vector<float>& lses, int, float x) {
                              return x / n_of(lses);
                            })));
  faults.push_back(
      op_fault("partials-unweighted", "partials summed as they are", "correct", 1,
               correct_with([](const std::vector<float>&, int, float x) { return x; })));
  faults.push_back(op_fault("empty-weight-times-nan", "0 * NaN of an empty shard (ATOM 1832)",
                            "correct", Fault::kEveryRank,
                            correct_with([](const std::vector<float>& lses, int rank, float x) {
                              const float w = weight_of(lses, rank, std::exp(1.0F));
                              return w == 0.0F ? w * std::nanf("") : w * x;
                            })));
  return faults;
}

std::vector<Fault> merge_faults() {
  std::vector<Fault> faults;
  OpFunctions coarse;
  coarse.merge = [](CombineOps& next, const TensorView& out, const TensorView& lse,
                    const TensorView& partials, const TensorView& lses, Stream stream) {
    const Tensor rounded = copied_to_host(lses, stream);
    for (std::int64_t i = 0; i < lses.elements(); ++i) {
      set_value(rounded, i, BFloat16::from_float(value_at(rounded, i)).to_float());
    }
    const Tensor on_device = copied_to_device(rounded, *lses.device, stream);
    next.merge(out, lse, partials, on_device, stream);
    lses.device->synchronize(stream);
  };
  faults.push_back(op_fault("merge-with-bf16-lse", "LSE rounded before the merge", "combined",
                            Fault::kEveryRank, coarse, with_combine(Combine::kAllToAll)));
  OpFunctions forgetful;
  forgetful.merge = [](CombineOps& next, const TensorView& out, const TensorView& lse,
                       const TensorView& partials, const TensorView& lses, Stream stream) {
    const std::int64_t n = partials.size(0);
    next.merge(out, lse, partials.narrow(0, 0, n - 1), lses.narrow(0, 0, n - 1), stream);
  };
  faults.push_back(op_fault("merge-forgets-last-rank", "N - 1 partials merged", "combined",
                            Fault::kEveryRank, forgetful, with_combine(Combine::kAllToAll)));
  OpFunctions swapped;
  swapped.unpack = [](CombineOps& next, const TensorView& partials, const TensorView& lses,
                      const TensorView& packed, Stream stream) {
    const Tensor lanes = copied_to_host(packed, stream);
    const std::int64_t width = packed.size(3);
    auto* values = lanes.as<BFloat16>();
    for (std::int64_t i = width - 2; i < packed.elements(); i += width) {
      std::swap(values[i], values[i + 1]);
    }
    const Tensor on_device = copied_to_device(lanes, *packed.device, stream);
    next.unpack(partials, lses, on_device, stream);
    packed.device->synchronize(stream);
  };
  faults.push_back(op_fault("packed-lse-halves-swapped", "high and low lane exchanged", "merge",
                            Fault::kEveryRank, swapped, with_combine(Combine::kAllToAllPacked)));
  OpFunctions converted;
  converted.pack = [](CombineOps& next, const TensorView& packed, const TensorView& partial,
                      const TensorView& lse, Stream stream) {
    const Tensor rounded = copied_to_host(lse, stream);
    for (std::int64_t i = 0; i < lse.elements(); ++i) {
      set_value(rounded, i, BFloat16::from_float(value_at(rounded, i)).to_float());
    }
    const Tensor on_device = copied_to_device(rounded, *lse.device, stream);
    next.pack(packed, partial, on_device, stream);
    lse.device->synchronize(stream);
  };
  faults.push_back(op_fault("packed-lse-converted", "LSE converted to bf16 instead of bit-split",
                            "merge", Fault::kEveryRank, converted,
                            with_combine(Combine::kAllToAllPacked)));
  return faults;
}

std::vector<Fault> project_faults() {
  std::vector<Fault> faults;
  OpFunctions rotated;
  rotated.project_value = [](QueryOps& next, const TensorView& out, const TensorView& latent,
                             const TensorView& w_uv, Stream stream) {
    const std::int64_t h = w_uv.size(0);
    next.project_value(out.narrow(1, 0, h - 1), latent.narrow(1, 0, h - 1),
                       w_uv.narrow(0, 1, h - 1), stream);
    next.project_value(out.narrow(1, h - 1, 1), latent.narrow(1, h - 1, 1), w_uv.narrow(0, 0, 1),
                       stream);
  };
  faults.push_back(
      op_fault("project-next-head", "W_UV of the neighbouring head", "projected", 2, rotated));
  OpFunctions scaled;
  scaled.project_value = [](QueryOps& next, const TensorView& out, const TensorView& latent,
                            const TensorView& w_uv, Stream stream) {
    next.project_value(out, latent, w_uv, stream);
    map_values(out, stream, [](float x, std::int64_t) { return 1.01F * x; });
  };
  faults.push_back(op_fault("project-one-percent", "a projection that is 1 % off", "projected",
                            Fault::kEveryRank, scaled));
  return faults;
}

}  // namespace

std::vector<Fault> combine_faults() {
  std::vector<Fault> faults;
  for (auto* room : {correct_faults, merge_faults, project_faults}) {
    for (Fault& fault : room()) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace mladcp
