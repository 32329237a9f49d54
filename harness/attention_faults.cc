// Faults inside decode attention: keys, scales, formats, LSE, schedules.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/fault.h"
#include "harness/fault_variations.h"
#include "harness/naive_attention.h"

namespace mladcp {
namespace {

using Decode = OpFunctions::Decode;

Fault decode_fault(std::string name, std::string imitates, int rank,
                   std::function<void(AttentionOps& next, const Decode& call)> decode,
                   std::vector<std::string> probes = {"numeric"},
                   const Scenario& scenario = fault_scenario()) {
  OpFunctions functions;
  functions.decode = std::move(decode);
  Fault fault = op_fault(std::move(name), std::move(imitates), "attention", rank,
                         std::move(functions), scenario);
  fault.probes = std::move(probes);
  return fault;
}

Fault naive_fault(std::string name, std::string imitates, int rank, NaiveAttention attention,
                  std::vector<std::string> probes = {"numeric"},
                  const Scenario& scenario = fault_scenario()) {
  return decode_fault(
      std::move(name), std::move(imitates), rank,
      [attention = std::move(attention)](AttentionOps&, const Decode& call) {
        attention.run(call);
      },
      std::move(probes), scenario);
}

Scenario scaled_scenario() {
  Scenario scenario = fault_scenario();
  scenario.parallel.q_scale = 0.5F;
  scenario.parallel.k_scale = 0.25F;
  return scenario;
}

// One long request on two ranks, one head each: what chains and sinks need.
Scenario long_scenario(std::int64_t length) {
  Scenario scenario = fault_scenario();
  scenario.parallel.tp = 2;
  scenario.parallel.dcp = 2;
  scenario.parallel.heads = 2;
  scenario.seq_lens = {length};
  return scenario;
}

std::vector<Fault> key_faults() {
  const auto weight =
      [](std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)> weigh) {
        NaiveAttention attention;
        attention.weight = std::move(weigh);
        return attention;
      };
  std::vector<Fault> faults;
  faults.push_back(naive_fault(
      "key-last-dropped", "the last visible key is skipped", 1,
      weight([](auto, auto, auto key, auto visible) { return key == visible - 1 ? 0.0 : 1.0; }),
      {"census"}));
  faults.push_back(naive_fault(
      "key-first-doubled", "a split boundary counts one key twice", 2,
      weight([](auto, auto, auto key, auto) { return key == 0 ? 2.0 : 1.0; }), {"census"}));
  faults.push_back(naive_fault(
      "key-middle-dropped", "one key lost between two splits", 0,
      weight([](auto, auto, auto key, auto visible) { return key == visible / 2 ? 0.0 : 1.0; }),
      {"census"}));
  faults.push_back(naive_fault("block-dropped", "a block of 16 keys never walked", 1,
                               weight([](auto, auto, auto key, auto visible) {
                                 return visible > 16 && key < 16 ? 0.0 : 1.0;
                               }),
                               {"census"}));
  faults.push_back(naive_fault("all-keys-doubled", "every split merged twice", Fault::kEveryRank,
                               weight([](auto, auto, auto, auto) { return 2.0; }), {"census"}));
  faults.push_back(naive_fault("key-dropped-on-one-head", "one head of a tile misses its last key",
                               0, weight([](auto, auto head, auto key, auto visible) {
                                 return head == 1 && key == visible - 1 ? 0.0 : 1.0;
                               }),
                               {"census"}));
  NaiveAttention shifted;
  shifted.value_column = [](std::int64_t c) { return c + 1; };
  faults.push_back(naive_fault("value-columns-shifted", "values read one column late",
                               Fault::kEveryRank, shifted));
  faults.push_back(decode_fault("rows-of-another-request", "two requests' rows exchanged", 1,
                                [](AttentionOps& next, const Decode& call) {
                                  call.run(next);
                                  edit_tensor(call.out, call.stream, [](const TensorView& host) {
                                    const std::int64_t row = host.size(1) * host.size(2);
                                    const std::int64_t t = host.size(0);
                                    for (std::int64_t i = 0; i < row; ++i) {
                                      const float a = value_at(host, (t - 1) * row + i);
                                      set_value(host, (t - 1) * row + i,
                                                value_at(host, (t - 2) * row + i));
                                      set_value(host, (t - 2) * row + i, a);
                                    }
                                  });
                                }));
  faults.push_back(decode_fault("heads-exchanged", "outputs of two heads exchanged", 2,
                                [](AttentionOps& next, const Decode& call) {
                                  call.run(next);
                                  edit_tensor(call.out, call.stream, [](const TensorView& host) {
                                    const std::int64_t width = host.size(2);
                                    const std::int64_t row = host.size(1) * width;
                                    for (std::int64_t i = 0; i < host.size(0) * width; ++i) {
                                      const std::int64_t at = i / width * row + i % width;
                                      const float a = value_at(host, at);
                                      set_value(host, at, value_at(host, at + width));
                                      set_value(host, at + width, a);
                                    }
                                  });
                                }));
  return faults;
}

// A change of the scales a kernel is given.
Fault scale_fault(std::string name, std::string imitates,
                  const std::function<void(Decode& call)>& change) {
  return decode_fault(
      std::move(name), std::move(imitates), Fault::kEveryRank,
      [change](AttentionOps& next, const Decode& call) {
        Decode changed = call;
        change(changed);
        changed.run(next);
      },
      {"numeric"}, scaled_scenario());
}

Fault output_fault(std::string name, std::string imitates,
                   const std::function<float(float x, const Decode& call)>& change) {
  return decode_fault(
      std::move(name), std::move(imitates), Fault::kEveryRank,
      [change](AttentionOps& next, const Decode& call) {
        call.run(next);
        map_values(call.out, call.stream, [&](float x, std::int64_t) { return change(x, call); });
      },
      {"numeric"}, scaled_scenario());
}

std::vector<Fault> scale_faults() {
  return {
      scale_fault("q-scale-missing", "logits without q_scale (vLLM 37054)",
                  [](Decode& call) { call.scales.q_scale = 1.0F; }),
      scale_fault("q-scale-twice", "logits with q_scale squared",
                  [](Decode& call) { call.scales.q_scale *= call.scales.q_scale; }),
      scale_fault("k-scale-missing", "neither logits nor output carry k_scale (SGLang 18396)",
                  [](Decode& call) { call.cache.scale = 1.0F; }),
      scale_fault("softmax-scale-without-mscale", "YaRN's mscale^2 forgotten",
                  [](Decode& call) { call.scales.softmax_scale /= 1.8738542F; }),
      scale_fault("softmax-scale-of-latent-width", "1/sqrt(D) instead of 1/sqrt(P + R)",
                  [](Decode& call) { call.scales.softmax_scale *= 0.75F; }),
      output_fault("output-scaled-twice", "k_scale applied in the kernel and after it",
                   [](float x, const Decode& call) { return x * call.cache.scale; }),
      output_fault("output-unscaled", "output left in codes",
                   [](float x, const Decode& call) { return x / call.cache.scale; }),
      output_fault("output-with-q-scale", "q_scale applied to the output (TensorRT-LLM 16916)",
                   [](float x, const Decode& call) { return x * call.scales.q_scale; }),
      output_fault("output-one-percent", "an output that is 1 % off",
                   [](float x, const Decode&) { return 1.01F * x; }),
  };
}

Fault lse_fault(std::string name, std::string imitates, int rank,
                const std::function<float(float lse, std::int64_t index)>& change) {
  return decode_fault(std::move(name), std::move(imitates), rank,
                      [change](AttentionOps& next, const Decode& call) {
                        call.run(next);
                        map_values(call.lse, call.stream, change);
                      });
}

std::vector<Fault> lse_faults() {
  std::vector<Fault> faults;
  faults.push_back(lse_fault(
      "lse-base-two", "LSE in base 2 where base e is expected (vLLM 47079)", Fault::kEveryRank,
      [](float lse, std::int64_t) { return lse * std::numbers::log2e_v<float>; }));
  faults.push_back(lse_fault(
      "lse-base-two-read-as-e", "natural LSE converted once too often (SGLang 33064)",
      Fault::kEveryRank, [](float lse, std::int64_t) { return lse * std::numbers::ln2_v<float>; }));
  faults.push_back(lse_fault("lse-small-offset", "an LSE 0.001 too large on one rank", 1,
                             [](float lse, std::int64_t) { return lse + 0.001F; }));
  faults.push_back(
      lse_fault("lse-rounded-to-bf16", "LSE kept in bf16", Fault::kEveryRank,
                [](float lse, std::int64_t) { return BFloat16::from_float(lse).to_float(); }));
  faults.push_back(lse_fault(
      "lse-of-another-head", "LSE of two heads exchanged", 0,
      [](float lse, std::int64_t index) { return index % 2 == 0 ? lse + 0.5F : lse - 0.5F; }));
  OpFunctions marker;
  marker.mask_empty = [](CombineOps&, const TensorView& out, const TensorView& lse,
                         const TensorView& visible, Stream stream) {
    const Tensor seen = copied_to_host(visible, stream);
    const std::int64_t heads = lse.size(1);
    map_values(lse, stream, [&](float value, std::int64_t i) {
      return seen.as<const std::int32_t>()[i / heads] == 0 ? std::numeric_limits<float>::infinity()
                                                           : value;
    });
    static_cast<void>(out);
  };
  Fault foreign{"lse-foreign-empty-marker",
                "an empty row keeps LSE +inf (vLLM 38416)",
                "lse",
                Fault::kEveryRank,
                fault_scenario(),
                {"numeric"},
                std::make_shared<OpFault>(Fault::kEveryRank, marker)};
  faults.push_back(std::move(foreign));
  OpFunctions unmasked;
  unmasked.mask_empty = [](CombineOps& next, const TensorView& out, const TensorView& lse,
                           const TensorView& visible, Stream stream) {
    next.mask_empty(out, lse, visible, stream);
    const Tensor seen = copied_to_host(visible, stream);
    const std::int64_t row = out.size(1) * out.size(2);
    map_values(out, stream, [&](float value, std::int64_t i) {
      return seen.as<const std::int32_t>()[i / row] == 0 ? std::nanf("") : value;
    });
  };
  faults.push_back({"empty-rows-not-zeroed",
                    "rows of an empty shard left unwritten (ATOM 1832)",
                    "mask",
                    Fault::kEveryRank,
                    fault_scenario(),
                    {"numeric"},
                    std::make_shared<OpFault>(Fault::kEveryRank, unmasked)});
  return faults;
}

std::vector<Fault> format_faults() {
  std::vector<Fault> faults;
  NaiveAttention flushed;
  flushed.round_p = [](float p) { return Float8E4M3::from_float(p).to_float(); };
  faults.push_back(naive_fault("p-flushed-under-a-sink", "e4m3 P at scale 1: the crowd vanishes",
                               Fault::kEveryRank, flushed, {"sink"}, long_scenario(6000)));
  NaiveAttention chain;
  // The accumulator of an e4m3 wgmma keeps 14 significant bits.
  chain.accumulate = [](float accumulator, float step_sum) {
    const float sum = accumulator + step_sum;
    if (sum == 0.0F) return 0.0F;
    const float unit = std::ldexp(1.0F, std::ilogb(sum) - 13);
    return std::trunc(sum / unit) * unit;
  };
  faults.push_back(naive_fault("long-accumulator-chain", "one e4m3 chain for the whole walk",
                               Fault::kEveryRank, chain, {"shifted"}, long_scenario(6000)));
  NaiveAttention coarse;
  coarse.accumulate = [](float accumulator, float step_sum) {
    return BFloat16::from_float(accumulator + step_sum).to_float();
  };
  faults.push_back(naive_fault("accumulate-in-bf16", "P V accumulated in bf16", Fault::kEveryRank,
                               coarse, {"shifted"}, long_scenario(2000)));
  NaiveAttention bf16_p;
  bf16_p.round_p = [](float p) { return Float8E4M3::from_float(256.0F * p).to_float() / 256.0F; };
  faults.push_back(naive_fault("p-in-e4m3", "P in e4m3 where the format table says fp32",
                               Fault::kEveryRank, bf16_p));
  return faults;
}

std::vector<Fault> schedule_faults() {
  const auto with = [](std::string name, std::string imitates, auto build) {
    OpFunctions functions;
    functions.build_schedule = build;
    return Fault{std::move(name),
                 std::move(imitates),
                 "schedule",
                 Fault::kEveryRank,
                 fault_scenario(),
                 {"numeric"},
                 std::make_shared<OpFault>(Fault::kEveryRank, functions)};
  };
  std::vector<Fault> faults;
  faults.push_back(with("schedule-drops-a-block", "the last part ends a block early",
                        [](AttentionOps& next, const ScheduleTensors& schedule,
                           const TensorView& lengths, const ScheduleShape& shape, Stream stream) {
                          next.build_schedule(schedule, lengths, shape, stream);
                          edit_tensor(schedule.parts, stream, [](const TensorView& host) {
                            auto* parts = host.as<std::int32_t>();
                            for (std::int64_t p = host.size(0) - 1; p >= 0; --p) {
                              if (parts[p * 8] < 0 || parts[p * 8 + 3] < 1) continue;
                              --parts[p * 8 + 3];
                              return;
                            }
                          });
                        }));
  faults.push_back(with("schedule-of-stale-lengths", "schedule built for one key less (FlashMLA 3)",
                        [](AttentionOps& next, const ScheduleTensors& schedule,
                           const TensorView& lengths, const ScheduleShape& shape, Stream stream) {
                          const Tensor stale = copied_to_host(lengths, stream);
                          for (std::int64_t b = 0; b < lengths.elements(); ++b) {
                            auto& length = stale.as<std::int32_t>()[b];
                            length = std::max(0, length - 64);
                          }
                          const Tensor on_device = copied_to_device(stale, *lengths.device, stream);
                          next.build_schedule(schedule, on_device, shape, stream);
                          lengths.device->synchronize(stream);
                        }));
  return faults;
}

}  // namespace

std::vector<Fault> attention_faults() {
  std::vector<Fault> faults;
  for (auto* room : {key_faults, scale_faults, lse_faults, format_faults, schedule_faults}) {
    for (Fault& fault : room()) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace mladcp
