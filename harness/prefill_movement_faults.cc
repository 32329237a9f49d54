// Faults in bringing a context together: gather, exchange, reorganise.
#include <algorithm>
#include <memory>
#include <utility>

#include "harness/fault.h"
#include "harness/fault_variations.h"
#include "harness/naive_prefill.h"

namespace mladcp {
namespace {

using Source = NaiveGather::Source;

Fault gather_fault(std::string name, std::string imitates, int rank, NaiveGather gather,
                   const Scenario& scenario = prefill_fault_scenario()) {
  OpFunctions functions;
  functions.gather = [gather = std::move(gather)](CacheOps&, const OpFunctions::Gather& call) {
    gather.run(call);
  };
  return op_fault(std::move(name), std::move(imitates), "gather", rank, std::move(functions),
                  scenario);
}

Source source_of(const ChunkIndex& index, std::int64_t t, std::int64_t request,
                 std::int64_t start) {
  return {request, t - index.cu_seq_lens[static_cast<std::size_t>(request)] + start};
}

std::vector<Fault> scale_faults() {
  const auto with_value = [](std::function<float(float, float)> value) {
    NaiveGather gather;
    gather.value = std::move(value);
    return gather;
  };
  Scenario bf16 = prefill_fault_scenario();
  bf16.parallel.kv_dtype = DType::kBF16;
  const float stray_scale = std::exchange(bf16.parallel.k_scale, 1.0F);
  return {
      gather_fault("gather-codes-as-values", "a same-dtype copy of FP8 codes", Fault::kEveryRank,
                   with_value([](float code, float) { return code; })),
      gather_fault("gather-scaled-twice", "k_scale applied by gather and by its caller", 1,
                   with_value([](float code, float scale) { return code * scale * scale; })),
      gather_fault("gather-inverse-scale", "divided by k_scale", 2,
                   with_value([](float code, float scale) { return code / scale; })),
      gather_fault("gather-scales-a-bf16-cache", "k_scale applied to a BF16 cache",
                   Fault::kEveryRank,
                   with_value([stray_scale](float x, float) { return x * stray_scale; }), bf16),
  };
}

std::vector<Fault> address_faults() {
  std::vector<Fault> faults;
  NaiveGather late;
  late.source = [](const ChunkIndex& index, std::int64_t t) {
    const std::int64_t before = std::max<std::int64_t>(0, t - 1);
    const std::int64_t request = index.token_to_seq[static_cast<std::size_t>(before)];
    return source_of(index, t, request, index.seq_starts[static_cast<std::size_t>(request)]);
  };
  faults.push_back(gather_fault("gather-token-to-seq-late",
                                "token_to_seq off by one at request edges", 2, late));
  NaiveGather restarted;
  restarted.source = [](const ChunkIndex& index, std::int64_t t) {
    return source_of(index, t, index.token_to_seq[static_cast<std::size_t>(t)], 0);
  };
  faults.push_back(gather_fault("gather-starts-ignored",
                                "every chunk gathered from its request's start", 3, restarted));
  NaiveGather aligned;
  aligned.source = [](const ChunkIndex& index, std::int64_t t) {
    const std::int64_t request = index.token_to_seq[static_cast<std::size_t>(t)];
    const std::int64_t start = index.seq_starts[static_cast<std::size_t>(request)];
    return source_of(index, t, request, start + 1);
  };
  faults.push_back(gather_fault("gather-one-row-late", "rows one local row too far", 0, aligned));
  NaiveGather first_page;
  first_page.column = [](std::int64_t, std::int64_t) { return std::int64_t{0}; };
  faults.push_back(gather_fault("gather-first-page-again", "page 0 read for every later page",
                                Fault::kEveryRank, first_page));
  NaiveGather sharded_twice;
  sharded_twice.column = [](std::int64_t local_row, std::int64_t page_size) {
    return local_row / (page_size * prefill_fault_scenario().parallel.dcp);
  };
  faults.push_back(gather_fault("gather-column-by-global-page",
                                "column = row / (page * N) for a local row", 1, sharded_twice));
  NaiveGather tailless;
  tailless.writes = [](const Source&, std::int64_t channel, std::int64_t width) {
    return channel < width - 16;
  };
  faults.push_back(gather_fault("gather-row-tail-lost",
                                "the last RoPE channels of a row not copied", Fault::kEveryRank,
                                tailless));
  NaiveGather edges;
  edges.writes = [](const Source& source, std::int64_t, std::int64_t) {
    return source.local_row % 16 != 0;
  };
  faults.push_back(
      gather_fault("gather-page-edge-lost", "a page's first row keeps the last chunk's", 0, edges));
  return faults;
}

Fault exchange_fault(std::string name, std::string imitates, int rank,
                     std::function<CollectiveFault::Run()> make) {
  return {std::move(name),
          std::move(imitates),
          "exchange",
          rank,
          prefill_fault_scenario(),
          {"numeric"},
          std::make_shared<CollectiveFault>(rank, std::move(make))};
}

// Rearranges the gathered rows on the host; `n` ranks' blocks.
CollectiveFault::Run placed(std::function<void(const TensorView& out, std::int64_t n)> edit) {
  return
      [edit = std::move(edit)](const CollectiveFault::Forward& forward, const CollectiveCall& call,
                               const TensorView& out, const TensorView& in, Stream stream) {
        forward(call, out, in, stream);
        edit_tensor(out, stream,
                    [&](const TensorView& host) { edit(host, host.size(0) / in.size(0)); });
      };
}

std::vector<Fault> exchange_faults() {
  const auto block = [](const TensorView& rows, std::int64_t n, std::int64_t rank) {
    const std::int64_t toks = rows.size(0) / n;
    return rows.narrow(0, rank * toks, toks);
  };
  std::vector<Fault> faults;
  faults.push_back(
      exchange_fault("exchange-blocks-rotated", "context blocks in another rank order", 1, [block] {
        return placed([block](const TensorView& out, std::int64_t n) {
          const Tensor before = copied_to_host(out, {});
          for (std::int64_t s = 0; s < n; ++s) {
            host_device().copy_strided(block(out, n, s), block(before, n, (s + 1) % n), {});
          }
        });
      }));
  faults.push_back(
      exchange_fault("exchange-own-block-overwritten",
                     "the gathered half reaches over this rank's own rows", 2, [block] {
                       return placed([block](const TensorView& out, std::int64_t n) {
                         host_device().copy_strided(block(out, n, 2), block(out, n, 1), {});
                       });
                     }));
  faults.push_back(exchange_fault(
      "exchange-of-the-last-chunk", "sent before this chunk's gather was done", Fault::kEveryRank,
      [] {
        auto last = std::make_shared<Tensor>();
        return [last](const CollectiveFault::Forward& forward, const CollectiveCall& call,
                      const TensorView& out, const TensorView& in, Stream stream) {
          Tensor own = copied_to_host(in, stream);
          if (last->shape().rank() != 0 && last->shape()[0] >= in.size(0)) {
            const Tensor stale = copied_to_device(
                copied_to_host(last->view().narrow(0, 0, in.size(0)), {}), *in.device, stream);
            forward(call, out, stale, stream);
            in.device->synchronize(stream);
          } else {
            forward(call, out, in, stream);
          }
          *last = std::move(own);
        };
      }));
  Scenario hurried = prefill_fault_scenario();
  hurried.timeout_s = 0.2;  // the wait for a rank that never comes
  faults.push_back(
      {"exchange-left-out",
       "a rank without rows of its own skips the exchange",
       "collectives",
       Fault::kEveryRank,
       hurried,
       {"numeric"},
       std::make_shared<CollectiveFault>(
           3, CollectiveFault::Run([](const CollectiveFault::Forward&, const CollectiveCall&,
                                      const TensorView&, const TensorView&, Stream) {}))});
  return faults;
}

Fault reorganise_fault(std::string name, std::string imitates, int rank,
                       std::function<void(std::vector<std::int32_t>& source_rows)> change) {
  OpFunctions functions;
  functions.reorganise = [change = std::move(change)](
                             CacheOps& next, const TensorView& out, const TensorView& gathered,
                             const TensorView& source_rows, Stream stream) {
    const Tensor rows = copied_to_host(source_rows, stream);
    auto* values = rows.as<std::int32_t>();
    std::vector<std::int32_t> changed(values, values + rows.view().elements());
    change(changed);
    std::copy(changed.begin(), changed.end(), values);
    const Tensor on_device = copied_to_device(rows, *source_rows.device, stream);
    next.reorganise(out, gathered, on_device, stream);
    source_rows.device->synchronize(stream);
  };
  return op_fault(std::move(name), std::move(imitates), "reorganise", rank, std::move(functions),
                  prefill_fault_scenario());
}

std::vector<Fault> reorganise_faults() {
  return {
      reorganise_fault("reorganise-keeps-padding", "gathered rows taken as they lie", 1,
                       [](std::vector<std::int32_t>& rows) {
                         for (std::size_t i = 0; i < rows.size(); ++i) {
                           rows[i] = static_cast<std::int32_t>(i);
                         }
                       }),
      reorganise_fault(
          "reorganise-by-rank", "rows in rank order, not in request order", Fault::kEveryRank,
          [](std::vector<std::int32_t>& rows) { std::sort(rows.begin(), rows.end()); }),
      reorganise_fault("reorganise-last-row-twice", "a request's tail read one row short", 0,
                       [](std::vector<std::int32_t>& rows) {
                         if (rows.size() > 1) rows.back() = rows[rows.size() - 2];
                       }),
  };
}

}  // namespace

std::vector<Fault> prefill_movement_faults() {
  std::vector<Fault> faults = scale_faults();
  for (auto* room : {address_faults, exchange_faults, reorganise_faults}) {
    for (Fault& fault : room()) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace mladcp
