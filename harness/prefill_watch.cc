#include "harness/prefill_watch.h"

#include <fmt/format.h>

#include <cstring>

#include "core/bfloat16.h"
#include "core/device.h"
#include "harness/exact_checks.h"

namespace mladcp {
namespace {

WatchedHead one_head(const TensorView& out, const TensorView& lse, std::int64_t head,
                     Stream stream) {
  return {copied_to_host(out.select(1, head), stream), copied_to_host(lse.select(1, head), stream)};
}

}  // namespace

void PrefillWatch::judge(Tally& tally, const TensorView& rows, std::int64_t row_count,
                         const std::vector<PlacedToken>& tokens, std::int64_t source_rank,
                         Stream stream) {
  const auto complain = [&](const std::string& text) {
    if (tally.wrong++ == 0) tally.first = fmt::format("chunk {}: {}", current(), text);
  };
  if (rows.size(0) != row_count) {
    complain(fmt::format("{} has {} rows, wanted {}", describe(rows), rows.size(0), row_count));
    return;
  }
  const Tensor got = copied_to_host(rows, stream);
  const TensorView wanted = expectation_.context_rows();
  const std::int64_t width = wanted.size(1);
  const auto row_bytes = static_cast<std::size_t>(width) * sizeof(BFloat16);
  for (const PlacedToken& token : tokens) {
    const std::int64_t source = expectation_.context_begin(token.request) + token.position;
    const auto* a = got.as<const BFloat16>() + token.row * width;
    const auto* b = wanted.as<const BFloat16>() + source * width;
    if (std::memcmp(a, b, row_bytes) == 0) continue;
    std::int64_t d = 0;
    while (a[d] == b[d]) ++d;
    complain(fmt::format("tensor {}[{}, {}], rank {} request {} position {}: got {}, wanted {}",
                         rows.name, token.row, d, source_rank, token.request, token.position,
                         element_text(got, token.row * width + d),
                         element_text(wanted, source * width + d)));
  }
}

void PrefillWatch::saw_local_rows(const TensorView& rows, Stream stream) {
  ++gather_.calls;
  if (!known()) return;
  judge(gather_, rows, expectation_.chunk(current()).toks,
        expectation_.local_tokens(current(), rank_), rank_, stream);
}

void PrefillWatch::saw_gathered_rows(const TensorView& rows, Stream stream) {
  ++exchange_.calls;
  if (!known()) return;
  const std::int64_t toks = expectation_.chunk(current()).toks;
  if (rows.size(0) != toks * world_size_) {
    judge(exchange_, rows, toks * world_size_, {}, rank_, stream);
    return;
  }
  for (std::int64_t s = 0; s < world_size_; ++s) {
    const std::int64_t source = fake_ ? rank_ : s;
    judge(exchange_, rows.narrow(0, s * toks, toks), toks,
          expectation_.local_tokens(current(), source), source, stream);
  }
}

void PrefillWatch::saw_context_rows(const TensorView& rows, Stream stream) {
  ++reorganise_.calls;
  if (!known() || fake_) return;
  const std::vector<PlacedToken> tokens = expectation_.reorganised_tokens(current());
  judge(reorganise_, rows, static_cast<std::int64_t>(tokens.size()), tokens, rank_, stream);
}

void PrefillWatch::saw_causal(const TensorView& out, const TensorView& lse, Stream stream) {
  causal_.head = 0;
  causal_.partial = one_head(out, lse, 0, stream);
}

void PrefillWatch::saw_partial(const TensorView& out, const TensorView& lse, Stream stream) {
  WatchedChunk chunk;
  chunk.head = (static_cast<std::int64_t>(chunks_.size()) + 1) % out.size(1);
  chunk.partial = one_head(out, lse, chunk.head, stream);
  chunks_.push_back(std::move(chunk));
}

void PrefillWatch::before_merge(const TensorView& running, const TensorView& lse, Stream stream) {
  if (chunks_.empty()) return;
  chunks_.back().before = one_head(running, lse, chunks_.back().head, stream);
}

void PrefillWatch::after_merge(const TensorView& running, const TensorView& lse, Stream stream) {
  if (chunks_.empty()) return;
  chunks_.back().merged = one_head(running, lse, chunks_.back().head, stream);
}

Check PrefillWatch::check(const Tally& tally, const char* stage, const char* name) const {
  Check result{stage, rank_, name};
  std::int64_t wrong = tally.wrong;
  std::string first = tally.first;
  if (tally.calls != expectation_.chunks()) {
    if (wrong++ == 0) {
      first =
          fmt::format("ran {} times, wanted once a chunk, {}", tally.calls, expectation_.chunks());
    }
  }
  result.measured = static_cast<double>(wrong);
  if (wrong != 0) {
    result.status = CheckStatus::kFail;
    result.message = fmt::format("stage {}, rank {}: {}", stage, rank_, first);
  } else if (tally.calls == 0) {
    result.status = CheckStatus::kSkip;
    result.message = "no cached context";
  }
  return result;
}

std::vector<Check> PrefillWatch::movement_checks() const {
  const auto skipped = [&](const char* stage, const char* name, const char* why) {
    Check result{stage, rank_, name, CheckStatus::kSkip};
    result.message = why;
    return result;
  };
  const char* exchange = "every rank's rows, in rank order";
  const char* reorganise = "each token in its place, no padding";
  std::vector<Check> checks = {check(gather_, "gather", "dequantised rows, bit for bit")};
  if (world_size_ == 1) {
    checks.push_back(skipped("exchange", exchange, "one rank exchanges nothing"));
    checks.push_back(skipped("reorganise", reorganise, "one rank has no padding"));
    return checks;
  }
  checks.push_back(check(exchange_, "exchange", exchange));
  checks.push_back(
      fake_ ? skipped("reorganise", reorganise, "the fake group's peers are copies of one rank")
            : check(reorganise_, "reorganise", reorganise));
  return checks;
}

void WatchedCacheOps::gather_and_dequantize(const TensorView& out, const KvCache& cache,
                                            const TensorView& block_table,
                                            const ContextChunkTensors& chunk, Stream stream) {
  next().gather_and_dequantize(out, cache, block_table, chunk, stream);
  watch_.saw_local_rows(out, stream);
}

void WatchedCacheOps::reorganise(const TensorView& out, const TensorView& gathered,
                                 const TensorView& source_rows, Stream stream) {
  next().reorganise(out, gathered, source_rows, stream);
  watch_.saw_context_rows(out, stream);
}

void WatchedAttentionOps::causal(const TensorView& out, const TensorView& lse,
                                 const TensorView& query, const TensorView& key,
                                 const TensorView& value, const TensorView& cu_rows,
                                 std::int64_t max_rows, float softmax_scale, Stream stream) {
  next().causal(out, lse, query, key, value, cu_rows, max_rows, softmax_scale, stream);
  watch_.saw_causal(out, lse, stream);
}

void WatchedAttentionOps::context(const TensorView& out, const TensorView& lse,
                                  const TensorView& query, const TensorView& key,
                                  const TensorView& value, const TensorView& cu_rows,
                                  std::int64_t max_rows, const TensorView& cu_context,
                                  float softmax_scale, Stream stream) {
  next().context(out, lse, query, key, value, cu_rows, max_rows, cu_context, softmax_scale, stream);
  watch_.saw_partial(out, lse, stream);
}

void WatchedCombineOps::merge_into(const TensorView& running, const TensorView& running_lse,
                                   const TensorView& partial, const TensorView& partial_lse,
                                   Stream stream) {
  watch_.before_merge(running, running_lse, stream);
  next().merge_into(running, running_lse, partial, partial_lse, stream);
  watch_.after_merge(running, running_lse, stream);
}

void WatchedCollective::run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                            Stream stream) {
  forward(call, out, in, stream);
  if (call.stage == "context") watch_.saw_gathered_rows(out, stream);
}

}  // namespace mladcp
