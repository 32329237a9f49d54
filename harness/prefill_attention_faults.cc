// Faults in what a prefill computes: the up-projection, attention to new rows and to chunks, and
// the running merge.
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <utility>

#include "core/bfloat16.h"
#include "core/float8_e4m3.h"
#include "harness/fault.h"
#include "harness/fault_variations.h"
#include "harness/naive_prefill.h"

namespace mladcp {
namespace {

using Attend = OpFunctions::Attend;
using MergeInto = OpFunctions::MergeInto;

Fault prefill_fault(std::string name, std::string imitates, std::string stage, int rank,
                    OpFunctions functions, std::vector<std::string> probes = {"numeric"}) {
  Fault fault = op_fault(std::move(name), std::move(imitates), std::move(stage), rank,
                         std::move(functions), prefill_fault_scenario());
  fault.probes = std::move(probes);
  return fault;
}

std::vector<Fault> projection_faults() {
  std::vector<Fault> faults;
  OpFunctions ropeless;
  ropeless.project_keys_values = [](QueryOps& next, const TensorView& key, const TensorView& value,
                                    const TensorView& rows, const TensorView& w_uk,
                                    const TensorView& w_uv, Stream stream) {
    next.project_keys_values(key, value, rows, w_uk, w_uv, stream);
    const std::int64_t nope = w_uk.size(1);
    map_values(key.narrow(2, nope, key.size(2) - nope), stream,
               [](float, std::int64_t) { return 0.0F; });
  };
  faults.push_back(prefill_fault("keys-without-rope", "RoPE part of the keys not copied", "causal",
                                 Fault::kEveryRank, ropeless));
  OpFunctions rotated;
  rotated.project_keys_values = [](QueryOps& next, const TensorView& key, const TensorView& value,
                                   const TensorView& rows, const TensorView& w_uk,
                                   const TensorView& w_uv, Stream stream) {
    next.project_keys_values(key, value, rows, w_uk, w_uv, stream);
    edit_tensor(value, stream, [](const TensorView& host) {
      const Tensor before = copied_to_host(host, {});
      const std::int64_t h = host.size(1);
      for (std::int64_t i = 0; i < h; ++i) {
        host_device().copy_strided(host.narrow(1, i, 1), before.view().narrow(1, (i + 1) % h, 1),
                                   {});
      }
    });
  };
  faults.push_back(
      prefill_fault("values-of-next-head", "W_UV of the neighbouring head", "causal", 1, rotated));
  OpFunctions cached;
  cached.project_keys_values = [](QueryOps& next, const TensorView& key, const TensorView& value,
                                  const TensorView& rows, const TensorView& w_uk,
                                  const TensorView& w_uv, Stream stream) {
    const float scale = prefill_fault_scenario().parallel.k_scale;
    map_values(rows, stream, [scale](float x, std::int64_t) {
      return scale * Float8E4M3::from_float(x / scale).to_float();
    });
    next.project_keys_values(key, value, rows, w_uk, w_uv, stream);
  };
  faults.push_back(prefill_fault("new-rows-through-the-cache",
                                 "new tokens attend to their FP8 copies", "causal",
                                 Fault::kEveryRank, cached));
  return faults;
}

OpFunctions causal_by(NaiveRows rows) {
  OpFunctions functions;
  functions.causal = [rows = std::move(rows)](AttentionOps&, const Attend& call) {
    rows.run(call);
  };
  return functions;
}

OpFunctions context_by(std::function<void(AttentionOps& next, const Attend& call)> context) {
  OpFunctions functions;
  functions.context = std::move(context);
  return functions;
}

std::vector<Fault> causal_faults() {
  const auto with_weight = [](std::function<double(std::int64_t, std::int64_t)> weight) {
    NaiveRows rows;
    rows.weight = std::move(weight);
    return causal_by(std::move(rows));
  };
  std::vector<Fault> faults;
  faults.push_back(prefill_fault(
      "causal-sees-next-row", "causal mask one row late", "causal", 2,
      with_weight([](std::int64_t i, std::int64_t j) { return j <= i + 1 ? 1.0 : 0.0; })));
  faults.push_back(
      prefill_fault("causal-misses-own-row", "causal mask one row early", "causal", 0,
                    with_weight([](std::int64_t i, std::int64_t j) { return j < i ? 1.0 : 0.0; })));
  OpFunctions narrow;
  narrow.causal = [](AttentionOps& next, const Attend& call) {
    Attend changed = call;
    // 1 / sqrt(P) where 1 / sqrt(P + R) is due: the value width is P in all models.
    changed.softmax_scale *=
        std::sqrt(static_cast<float>(call.query.size(2)) / static_cast<float>(call.value.size(2)));
    changed.run(next);
  };
  faults.push_back(prefill_fault("softmax-scale-without-rope", "1 / sqrt(P), not 1 / sqrt(P + R)",
                                 "causal", Fault::kEveryRank, narrow));
  return faults;
}

// The context call with cu_keys changed on the host.
OpFunctions with_cu_keys(std::function<void(std::int32_t* cu, std::int64_t requests)> change) {
  return context_by([change = std::move(change)](AttentionOps& next, const Attend& call) {
    const Tensor cu = copied_to_host(call.cu_keys, call.stream);
    change(cu.as<std::int32_t>(), cu.view().elements() - 1);
    const Tensor on_device = copied_to_device(cu, *call.cu_keys.device, call.stream);
    Attend changed = call;
    changed.cu_keys = on_device;
    changed.run(next);
    call.cu_keys.device->synchronize(call.stream);
  });
}

std::vector<Fault> context_faults() {
  const char* stage = "context attention";
  std::vector<Fault> faults;
  NaiveRows masked;
  masked.weight = [](std::int64_t i, std::int64_t j) { return j <= i ? 1.0 : 0.0; };
  faults.push_back(prefill_fault(
      "context-masked-causally", "the causal mask laid over a chunk", stage, Fault::kEveryRank,
      context_by([masked](AttentionOps&, const Attend& call) { masked.run(call); })));
  faults.push_back(prefill_fault("context-edge-to-neighbour",
                                 "a request's last context row read by the next", stage, 1,
                                 with_cu_keys([](std::int32_t* cu, std::int64_t requests) {
                                   for (std::int64_t b = 1; b < requests; ++b) {
                                     if (cu[b] > cu[b - 1] && cu[b + 1] > cu[b]) --cu[b];
                                   }
                                 })));
  faults.push_back(prefill_fault("context-lse-in-base-two", "LSE in log2 returned (vLLM 47079)",
                                 stage, 2, context_by([](AttentionOps& next, const Attend& call) {
                                   call.run(next);
                                   map_values(call.lse, call.stream, [](float lse, std::int64_t) {
                                     return lse * std::numbers::log2e_v<float>;
                                   });
                                 })));
  faults.push_back(prefill_fault(
      "context-empty-lse-zero", "absent request's LSE is 0, not -inf (vLLM 38416)", stage, 0,
      context_by([](AttentionOps& next, const Attend& call) {
        call.run(next);
        map_values(call.lse, call.stream,
                   [](float lse, std::int64_t) { return std::isinf(lse) ? 0.0F : lse; });
      })));
  faults.push_back(
      prefill_fault("context-empty-unwritten", "absent request's output left unwritten (ATOM 1832)",
                    stage, 3, context_by([](AttentionOps& next, const Attend& call) {
                      call.run(next);
                      const Tensor lses = copied_to_host(call.lse, call.stream);
                      const std::int64_t width = call.out.size(2);
                      map_values(call.out, call.stream, [&](float x, std::int64_t i) {
                        return std::isinf(value_at(lses, i / width)) ? std::nanf("") : x;
                      });
                    })));
  NaiveRows short_by_one;
  short_by_one.weight = [](std::int64_t, std::int64_t j) { return j == 0 ? 0.0 : 1.0; };
  faults.push_back(prefill_fault(
      "context-first-key-lost", "a chunk's first key is skipped", stage, 1,
      context_by([short_by_one](AttentionOps&, const Attend& call) { short_by_one.run(call); }),
      {"census"}));
  NaiveRows doubled;
  doubled.weight = [](std::int64_t, std::int64_t) { return 2.0; };
  faults.push_back(prefill_fault(
      "context-keys-doubled", "every split of a chunk merged twice", stage, Fault::kEveryRank,
      context_by([doubled](AttentionOps&, const Attend& call) { doubled.run(call); }), {"census"}));
  NaiveRows coarse;
  coarse.round_p = [](float p) { return Float8E4M3::from_float(p).to_float(); };
  faults.push_back(
      prefill_fault("context-p-in-e4m3", "P rounded to FP8", stage, 0,
                    context_by([coarse](AttentionOps&, const Attend& call) { coarse.run(call); }),
                    {"numeric", "sink"}));
  return faults;
}

OpFunctions merge_by(std::function<void(CombineOps& next, const MergeInto& call)> merge) {
  OpFunctions functions;
  functions.merge_into = std::move(merge);
  return functions;
}

OpFunctions naive_merge(NaiveMerge merge) {
  return merge_by(
      [merge = std::move(merge)](CombineOps&, const MergeInto& call) { merge.run(call); });
}

// Calls merge(next, call, chunk) with the number of the chunk.
std::function<OpFunctions()> merge_counting(
    std::function<void(CombineOps& next, const MergeInto& call, std::int64_t chunk)> merge) {
  return [merge = std::move(merge)] {
    return merge_by(
        [merge, chunk = std::make_shared<std::int64_t>(0)](
            CombineOps& next, const MergeInto& call) { merge(next, call, (*chunk)++); });
  };
}

std::int64_t last_chunk() {
  const Scenario scenario = prefill_fault_scenario();
  const ChunkGeometry geometry{scenario.parallel.sharding(), scenario.parallel.page_size,
                               scenario.workspace_rows};
  return static_cast<std::int64_t>(
             build_chunk_plan(scenario.context_lens, geometry).chunks.size()) -
         1;
}

Fault counted_fault(std::string name, std::string imitates, int rank,
                    std::function<OpFunctions()> make) {
  return {std::move(name),
          std::move(imitates),
          "merge",
          rank,
          prefill_fault_scenario(),
          {"numeric"},
          std::make_shared<OpFault>(rank, std::move(make))};
}

std::vector<Fault> merge_faults() {
  std::vector<Fault> faults;
  NaiveMerge relative;
  relative.running_weight = [](float running, float partial) {
    const float e = std::exp(running - partial);  // inf where the partial is empty
    return e / (e + 1.0F);
  };
  faults.push_back(prefill_fault("merge-relative-to-empty",
                                 "exponentials relative to an empty partial's LSE", "merge",
                                 Fault::kEveryRank, naive_merge(relative)));
  NaiveMerge base_two;
  base_two.running_weight = [](float running, float partial) {
    return 1.0F / (1.0F + std::exp2(partial - running));
  };
  faults.push_back(prefill_fault("merge-in-base-two", "exp2 of a natural LSE", "merge", 1,
                                 naive_merge(base_two)));
  NaiveMerge average;
  average.running_weight = [](float, float partial) { return std::isinf(partial) ? 1.0F : 0.5F; };
  faults.push_back(prefill_fault("merge-averages-chunks", "chunks weigh alike", "merge",
                                 Fault::kEveryRank, naive_merge(average)));
  NaiveMerge largest;
  largest.lse = [](float running, float partial) { return std::max(running, partial); };
  faults.push_back(prefill_fault("merge-keeps-larger-lse", "the merged LSE is the larger one",
                                 "merge", 2, naive_merge(largest)));
  faults.push_back(prefill_fault("merge-twice", "a chunk merged twice", "merge", 0,
                                 merge_by([](CombineOps& next, const MergeInto& call) {
                                   call.run(next);
                                   call.run(next);
                                 })));
  faults.push_back(prefill_fault(
      "running-result-in-bf16", "the running result rounded at every chunk", "merge",
      Fault::kEveryRank, merge_by([](CombineOps& next, const MergeInto& call) {
        call.run(next);
        map_values(call.running, call.stream,
                   [](float x, std::int64_t) { return BFloat16::from_float(x).to_float(); });
      })));
  faults.push_back(
      counted_fault("merge-left-out", "one chunk attended to but not merged", 3,
                    merge_counting([](CombineOps& next, const MergeInto& call, std::int64_t chunk) {
                      if (chunk != 1) call.run(next);
                    })));
  faults.push_back(
      counted_fault("running-result-overwritten",
                    "scratch of a chunk's attention reaches over the running result", 1, [] {
                      OpFunctions functions;
                      auto running = std::make_shared<TensorView>();
                      functions.causal = [running](AttentionOps& next, const Attend& call) {
                        call.run(next);
                        *running = call.out;
                      };
                      functions.context = [running](AttentionOps& next, const Attend& call) {
                        call.run(next);
                        map_values(running->narrow(0, 0, 1), call.stream,
                                   [](float x, std::int64_t) { return x + 0x1p-6F; });
                      };
                      return functions;
                    }));
  const std::int64_t last = last_chunk();
  faults.push_back(counted_fault(
      "merge-last-lse-lost", "the last chunk's LSE never stored", Fault::kEveryRank,
      merge_counting([last](CombineOps& next, const MergeInto& call, std::int64_t chunk) {
        const Tensor before = copied_to_host(call.running_lse, call.stream);
        call.run(next);
        if (chunk != last) return;
        map_values(call.running_lse, call.stream,
                   [&](float, std::int64_t i) { return value_at(before, i); });
      })));
  OpFunctions scaled;
  scaled.round_to = [](CombineOps& next, const TensorView& out, const TensorView& value,
                       Stream stream) {
    next.round_to(out, value, stream);
    map_values(out, stream, [](float x, std::int64_t) { return 1.03F * x; });
  };
  faults.push_back(prefill_fault("prefill-output-three-percent", "an output that is 3 % off",
                                 "output", Fault::kEveryRank, scaled));
  return faults;
}

}  // namespace

std::vector<Fault> prefill_attention_faults() {
  std::vector<Fault> faults = projection_faults();
  for (auto* room : {causal_faults, context_faults, merge_faults}) {
    for (Fault& fault : room()) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace mladcp
