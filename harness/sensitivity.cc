#include "harness/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "harness/fault_variations.h"
#include "harness/naive_attention.h"
#include "harness/run_scenario.h"

namespace mladcp {
namespace {

std::vector<double> halvings(double largest, int count) {
  std::vector<double> sizes;
  sizes.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) sizes.push_back(std::ldexp(largest, -i));
  return sizes;
}

std::unique_ptr<Variation> decode_variation(
    std::function<void(AttentionOps& next, const OpFunctions::Decode& call)> decode) {
  OpFunctions functions;
  functions.decode = std::move(decode);
  return std::make_unique<OpFault>(0, std::move(functions));
}

void scale_values(const TensorView& tensor, double size, Stream stream) {
  map_values(tensor, stream,
             [&](float x, std::int64_t) { return static_cast<float>((1.0 + size) * x); });
}

std::unique_ptr<Variation> output_scaled(double size) {
  return decode_variation([size](AttentionOps& next, const OpFunctions::Decode& call) {
    call.run(next);
    scale_values(call.out, size, call.stream);
  });
}

std::unique_ptr<Variation> logits_scaled(double size) {
  return decode_variation([size](AttentionOps& next, const OpFunctions::Decode& call) {
    OpFunctions::Decode changed = call;
    changed.scales.softmax_scale *= static_cast<float>(1.0 + size);
    changed.run(next);
  });
}

std::unique_ptr<Variation> lse_offset(double size) {
  return decode_variation([size](AttentionOps& next, const OpFunctions::Decode& call) {
    call.run(next);
    map_values(call.lse, call.stream,
               [&](float x, std::int64_t) { return x + static_cast<float>(size); });
  });
}

// The kernel ends its walk early; plan and schedule know nothing of it.
std::unique_ptr<Variation> keys_dropped(double size) {
  return decode_variation([size](AttentionOps& next, const OpFunctions::Decode& call) {
    const Tensor fewer = copied_to_host(call.rows.visible, call.stream);
    for (std::int64_t t = 0; t < fewer.view().elements(); ++t) {
      auto& visible = fewer.as<std::int32_t>()[t];
      visible = std::max(0, visible - static_cast<std::int32_t>(size));
    }
    const Tensor on_device = copied_to_device(fewer, *call.rows.visible.device, call.stream);
    OpFunctions::Decode changed = call;
    changed.rows.visible = on_device;
    changed.run(next);
    call.rows.visible.device->synchronize(call.stream);
  });
}

std::unique_ptr<Variation> heads_swapped(double size) {
  return decode_variation([size](AttentionOps& next, const OpFunctions::Decode& call) {
    call.run(next);
    edit_tensor(call.out, call.stream, [&](const TensorView& host) {
      const std::int64_t width = host.size(2);
      for (std::int64_t pair = 0; pair < static_cast<std::int64_t>(size); ++pair) {
        for (std::int64_t c = 0; c < width; ++c) {
          const std::int64_t a = 2 * pair * width + c;
          const float kept = value_at(host, a);
          set_value(host, a, value_at(host, a + width));
          set_value(host, a + width, kept);
        }
      }
    });
  });
}

std::unique_ptr<Variation> visible_shortened(double size) {
  return std::make_unique<PlanFault>(0, [size](int, DecodePlan& plan) {
    for (auto& visible : plan.visible) visible -= static_cast<std::int32_t>(size);
    for (auto& length : plan.lengths) length -= static_cast<std::int32_t>(size);
  });
}

std::unique_ptr<Variation> absorbed_scaled(double size) {
  OpFunctions functions;
  functions.absorb = [size](QueryOps& next, const TensorView& out, const TensorView& q_nope,
                            const TensorView& w_uk, Stream stream) {
    next.absorb(out, q_nope, w_uk, stream);
    scale_values(out, size, stream);
  };
  return std::make_unique<OpFault>(0, std::move(functions));
}

std::unique_ptr<Variation> corrected_scaled(double size) {
  OpFunctions functions;
  functions.correct = [size](CombineOps& next, const TensorView& out, const TensorView& partial,
                             const TensorView& lses, int rank, Stream stream) {
    next.correct(out, partial, lses, rank, stream);
    scale_values(out, size, stream);
  };
  return std::make_unique<OpFault>(0, std::move(functions));
}

std::unique_ptr<Variation> sum_scaled(double size) {
  return std::make_unique<CollectiveFault>(
      0, [size](const CollectiveFault::Forward& forward, const CollectiveCall& call,
                const TensorView& out, const TensorView& in, Stream stream) {
        forward(call, out, in, stream);
        if (call.op == CollectiveOp::kReduceScatter) scale_values(out, size, stream);
      });
}

std::unique_ptr<Variation> merged_scaled(double size) {
  OpFunctions functions;
  functions.merge = [size](CombineOps& next, const TensorView& out, const TensorView& lse,
                           const TensorView& partials, const TensorView& lses, Stream stream) {
    next.merge(out, lse, partials, lses, stream);
    scale_values(out, size, stream);
  };
  return std::make_unique<OpFault>(0, std::move(functions));
}

std::unique_ptr<Variation> projected_scaled(double size) {
  OpFunctions functions;
  functions.project_value = [size](QueryOps& next, const TensorView& out, const TensorView& latent,
                                   const TensorView& w_uv, Stream stream) {
    next.project_value(out, latent, w_uv, stream);
    scale_values(out, size, stream);
  };
  return std::make_unique<OpFault>(0, std::move(functions));
}

// P below `size` of the row's largest becomes 0.
std::unique_ptr<Variation> p_flushed(double size) {
  NaiveAttention attention;
  attention.round_p = [size](float p) { return p < size ? 0.0F : p; };
  return decode_variation(
      [attention](AttentionOps&, const OpFunctions::Decode& call) { attention.run(call); });
}

// An accumulator of 14 significant bits over chains of `size` keys, added in fp32 then.
std::unique_ptr<Variation> short_accumulator(double size) {
  return decode_variation([size](AttentionOps&, const OpFunctions::Decode& call) {
    NaiveAttention attention;
    attention.chain_keys = static_cast<std::int64_t>(size);
    attention.accumulate = [](float accumulator, float step_sum) {
      const float sum = accumulator + step_sum;
      if (sum == 0.0F) return 0.0F;
      const float unit = std::ldexp(1.0F, std::ilogb(sum) - 13);
      return std::trunc(sum / unit) * unit;
    };
    attention.run(call);
  });
}

bool is_caught(const Scenario& scenario, const Variation& variation, std::string_view stage,
               Backend& backend) {
  const Report report = run_scenario(
      scenario, &variation, [](double, std::string_view) {}, backend);
  const auto failed =
      std::find_if(report.checks.begin(), report.checks.end(),
                   [](const Check& check) { return check.status == CheckStatus::kFail; });
  return failed != report.checks.end() && failed->stage == stage;
}

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<double> kScales = halvings(0.125, 20);
  static const std::vector<FaultKind> kinds = {
      {"output scale error", "relative", "numeric", "attention", halvings(0.125, 14),
       output_scaled},
      {"logit scale error", "relative", "numeric", "attention", halvings(0.125, 18), logits_scaled},
      {"LSE offset", "nats", "numeric", "attention", halvings(0.125, 18), lse_offset},
      {"keys dropped", "keys", "census", "attention", halvings(4, 3), keys_dropped},
      {"pairs of heads swapped", "pairs", "numeric", "attention", halvings(1, 1), heads_swapped},
      {"visible length short by", "keys", "numeric", "plan", halvings(16, 5), visible_shortened},
      {"P flushed below", "of the largest P", "sink", "attention", halvings(0.125, 18), p_flushed},
      {"14-bit accumulator over", "keys a chain", "shifted", "attention", halvings(65536, 12),
       short_accumulator},
      {"absorbed query scaled", "relative", "numeric", "absorb", kScales, absorbed_scaled},
      {"weighted partial, bf16", "relative", "numeric", "correct", kScales, corrected_scaled},
      {"weighted partial, fp32", "relative", "numeric", "correct", kScales, corrected_scaled,
       Combine::kAllGatherReduceScatter, DType::kF32},
      {"sum of ag_rs, bf16", "relative", "numeric", "combined", kScales, sum_scaled},
      {"sum of ag_rs, fp32", "relative", "numeric", "combined", kScales, sum_scaled,
       Combine::kAllGatherReduceScatter, DType::kF32},
      {"merge of a2a", "relative", "numeric", "combined", kScales, merged_scaled,
       Combine::kAllToAll},
      {"merge of a2a_packed", "relative", "numeric", "combined", kScales, merged_scaled,
       Combine::kAllToAllPacked},
      {"projection scaled", "relative", "numeric", "projected", kScales, projected_scaled},
  };
  return kinds;
}

Scenario sensitivity_scenario(const FaultKind& kind, std::int64_t length) {
  Scenario scenario;
  // A census takes one pass per 512 keys and head: it wants the real width and many heads.
  const bool census = kind.probe == "census";
  scenario.model = census ? "deepseek-v3" : "tiny";
  scenario.parallel = {.heads = census ? 128 : 4,
                       .tp = 2,
                       .dcp = 2,
                       .interleave = 1,
                       .page_size = 64,
                       .combine = kind.combine,
                       .reduce_dtype = kind.reduce_dtype};
  scenario.seq_lens = {length};
  scenario.probes = {std::string(kind.probe)};
  return scenario;
}

Sensitivity smallest_caught(const FaultKind& kind, std::int64_t length, const Scenario& scenario,
                            Backend& backend) {
  Sensitivity result{kind.name, kind.unit, kind.probe, length, 0.0};
  for (const double size : kind.sizes) {
    if (!is_caught(scenario, *kind.make(size), kind.stage, backend)) break;
    result.smallest = size;
  }
  return result;
}

}  // namespace mladcp
