#include "harness/prefill_watch.h"

#include <fmt/format.h>

#include <cstring>

#include "core/bfloat16.h"
#include "core/device.h"
#include "harness/exact_checks.h"

namespace mladcp {

Tensor sampled(const TensorView& view, const PrefillSample& sample, Stream stream) {
  Shape shape = view.shape;
  shape[0] = static_cast<std::int64_t>(sample.rows.size());
  shape[1] = static_cast<std::int64_t>(sample.heads.size());
  Tensor picked(host_device(), view.dtype, shape, view.name);
  for (std::size_t h = 0; h < sample.heads.size(); ++h) {
    const Tensor head = copied_to_host(view.select(1, sample.heads[h]), stream);
    const TensorView to = picked.view().select(1, static_cast<std::int64_t>(h));
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
      host_device().copy_strided(to.narrow(0, static_cast<std::int64_t>(i), 1),
                                 head.view().narrow(0, sample.rows[i], 1), {});
    }
  }
  return picked;
}

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
    complain(fmt::format("tensor {}[{}, {}], rank {} request {} position {}: got {}, wanted {}{}",
                         rows.name, token.row, d, source_rank, token.request, token.position,
                         element_text(got, token.row * width + d),
                         element_text(wanted, source * width + d),
                         named_ ? "; the row is " + named_(got, token.row) : ""));
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
  causal_ = taken(out, lse, stream);
}

void PrefillWatch::saw_partial(const TensorView& out, const TensorView& lse, Stream stream) {
  chunks_.emplace_back().partial = taken(out, lse, stream);
}

void PrefillWatch::expect_carried(const WatchedHeads& running) {
  ++carry_.calls;
  const WatchedHeads& left = chunks_.size() > 1 ? chunks_[chunks_.size() - 2].merged : causal_;
  const auto compare = [&](const TensorView& got, const TensorView& wanted) {
    const Check check = check_equal_bits("merge", rank_, "", got, wanted);
    if (check.status == CheckStatus::kFail && carry_.wrong++ == 0) {
      carry_.first =
          fmt::format("chunk {} met another running result: {}", chunks_.size() - 1, check.message);
    }
  };
  compare(running.out, left.out);
  compare(running.lse, left.lse);
}

void PrefillWatch::before_merge(const TensorView& running, const TensorView& lse, Stream stream) {
  if (chunks_.empty()) return;
  chunks_.back().before = taken(running, lse, stream);
  expect_carried(chunks_.back().before);
}

void PrefillWatch::after_merge(const TensorView& running, const TensorView& lse, Stream stream) {
  if (!chunks_.empty()) chunks_.back().merged = taken(running, lse, stream);
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

Check PrefillWatch::carry_check() const {
  return check(carry_, "merge", "running result carried between chunks");
}

std::vector<Check> PrefillWatch::movement_checks() const {
  const char* exchange = "every rank's rows, in rank order";
  const char* reorganise = "each token in its place, no padding";
  std::vector<Check> checks = {check(gather_, "gather", "dequantised rows, bit for bit")};
  if (world_size_ == 1) {
    checks.push_back(skipped("exchange", rank_, exchange, "one rank exchanges nothing"));
    checks.push_back(skipped("reorganise", rank_, reorganise, "one rank has no padding"));
    return checks;
  }
  checks.push_back(check(exchange_, "exchange", exchange));
  checks.push_back(fake_ ? skipped("reorganise", rank_, reorganise,
                                   "the fake group's peers are copies of one rank")
                         : check(reorganise_, "reorganise", reorganise));
  return checks;
}

}  // namespace mladcp
