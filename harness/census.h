// The census: a problem in which every key can be counted. Key t of a request carries +-1 in latent
// channel t % W and, in its RoPE part, the code of window t / W; a query row carries the code of
// the window it audits. All keys of that window then share one logit z, all others lie far below,
// so
//   m = s * out[c] / k_scale * exp(lse - z)
// is the number of times the key with channel c was attended: 1 when it is visible, 0 when not. The
// LSE is part of it (out alone cannot see a missing window or uniform doubling), and so are the
// signs s (without them all windows look alike).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/check.h"
#include "harness/problem.h"
#include "harness/scenario.h"

namespace mladcp {

// Window codes: three one-hot digits of amplitude 32 in base R / 3.
struct CensusCode {
  std::int64_t base = 0;

  explicit CensusCode(std::int64_t rope) : base(rope / 3) {}
  std::int64_t count() const { return base * base * base; }
  // Which of the R channels hold 32 for code g.
  std::int64_t channel(std::int64_t g, int digit) const;
};

// +1 or -1, from a hash of (seed, request, position).
int census_sign(std::uint64_t seed, std::int64_t request, std::int64_t position);

// One pass: as many windows of every request as there are heads to audit them.
struct CensusPass {
  std::int64_t width = 0;         // W: channels observed, L or Vd
  std::int64_t first_window = 0;  // of every request
  std::int64_t windows = 0;       // audited in this pass, at most, per request
  std::int64_t heads = 0;         // every so many heads of a row audit them anew
  std::uint64_t seed = 0;
  double full_match = 0.0;  // z

  // The window head `head` of a row audits, given the positions the row sees; -1 for none.
  std::int64_t audited_window(std::int64_t head, std::int64_t visible) const;
};

// The scenario with the probe's scales: k_scale a power of two, q_scale its inverse (1 and 1 for a
// BF16 cache). Unsupported when the model's RoPE width or softmax scale leaves no gap between a
// full match and the nearest miss.
Scenario census_scenario(const Scenario& scenario);

// The passes in which every `heads` heads of a row audit every window of its request, for W
// channels: all heads of the model where ranks attend for each other, as in decode; a rank's own
// where each attends for itself, as in prefill.
std::vector<CensusPass> census_passes(const Scenario& census, std::int64_t width,
                                      std::int64_t heads);

DecodeProblem census_problem(const Scenario& census, const CensusPass& pass, int threads);

// What one row and head of a pass should have counted, against what its output and LSE say.
struct CensusMiss {
  std::int64_t request = 0;
  std::int64_t position = 0;
  bool expected = false;
  double multiplicity = 0.0;
};

// out[0 .. width): the observed channels of one row and head, lse its log-sum-exp over all keys.
// expected(p): should the key at position p have been attended? Returns the keys with
// |m - expected| >= 1/4, in channel order; a NaN counts as such.
template <typename Expected>
std::vector<CensusMiss> take_census(const CensusPass& pass, std::int64_t request,
                                    std::int64_t window, const std::vector<double>& out, double lse,
                                    double value_scale, const Expected& expected) {
  std::vector<CensusMiss> misses;
  const double mass = std::exp(lse - pass.full_match) / value_scale;
  for (std::int64_t c = 0; c < static_cast<std::int64_t>(out.size()); ++c) {
    const std::int64_t p = window * pass.width + c;
    const bool wanted = c < pass.width && expected(p);
    const double m =
        mass == 0.0 ? 0.0
                    : census_sign(pass.seed, request, p) * out[static_cast<std::size_t>(c)] * mass;
    const double error = m - (wanted ? 1.0 : 0.0);
    if (!(std::fabs(error) < 0.25)) misses.push_back({request, p, wanted, m});
  }
  return misses;
}

// Counts keys in outputs of one stage on one rank, over many rows and heads.
class CensusCount {
 public:
  // What is counted: the census of one pass on one layout of pages.
  struct Setting {
    const Scenario& census;
    const CensusPass& pass;
    const PagedLayout& layout;
  };
  // One row of a tensor [T, heads, X].
  struct Row {
    const char* tensor;
    std::int64_t row, head;
    std::int64_t request, window;
    std::string part = {};  // "chunk 2, ": what of the stage it belongs to
  };

  CensusCount(const Setting& setting, const char* stage, int rank)
      : setting_(setting), stage_(stage), rank_(rank) {}

  // As take_census.
  template <typename Expected>
  void take(const Row& row, const std::vector<double>& out, double lse, const Expected& expected) {
    const auto misses =
        take_census(setting_.pass, row.request, row.window, out, lse, value_scale(), expected);
    if (!misses.empty() && wrong_ == 0) describe(row, misses[0]);
    wrong_ += static_cast<std::int64_t>(misses.size());
  }
  Check check() const;

 private:
  double value_scale() const;
  void describe(const Row& row, const CensusMiss& miss);

  Setting setting_;
  const char* stage_;
  int rank_;
  std::int64_t wrong_ = 0;
  std::string first_;
};

}  // namespace mladcp
